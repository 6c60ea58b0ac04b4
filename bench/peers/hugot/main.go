//go:build ignore

// Command hugot times the Go backend of github.com/knights-analytics/hugot for
// bench/peers/encoders.py, in the protocol of bench/peers/encoders. It is built in a module of its
// own, because flashkit does not depend on hugot.
//
//	hugot FOLDER
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/knights-analytics/hugot"
	"github.com/knights-analytics/hugot/pipelines"
)

type request struct {
	Texts   []string
	Query   string
	Seconds float64
	Results bool
}

type reply struct {
	Median  float64   `json:"median"`
	Best    float64   `json:"best"`
	Calls   int       `json:"calls"`
	Results []float32 `json:"results,omitempty"`
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "hugot: usage: hugot FOLDER")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "hugot:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string) (err error) {
	session, err := hugot.NewGoSession()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Destroy()) }()
	p, err := hugot.NewPipeline(session, hugot.FeatureExtractionConfig{
		ModelPath: dir, Name: "texts", OnnxFilename: "hidden.onnx",
		Options: []hugot.FeatureExtractionOption{pipelines.WithNormalization()},
	})
	if err != nil {
		return err
	}
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	if err := out.Encode(struct{}{}); err != nil {
		return err
	}
	for in.More() {
		var r request
		if err := in.Decode(&r); err != nil {
			return err
		}
		if r.Query != "" {
			return errors.New("pairs are not supported")
		}
		var a reply
		var times []float64
		for end := time.Now().Add(time.Duration(r.Seconds * 1e9)); len(times) == 0 || time.Now().Before(end); {
			start := time.Now()
			o, err := p.RunPipeline(r.Texts)
			if err != nil {
				return err
			}
			times = append(times, time.Since(start).Seconds())
			if r.Results {
				a.Results = slices.Concat(o.Embeddings...)
			}
		}
		slices.Sort(times)
		a.Median, a.Best, a.Calls = times[len(times)/2], times[0], len(times)
		if err := out.Encode(a); err != nil {
			return err
		}
	}
	return nil
}
