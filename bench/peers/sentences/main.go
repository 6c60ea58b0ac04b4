// Command sentences times package nn/bert for bench/peers/minilm.py. The script starts this command
// once for each number of threads. The script alternates the command's measurements with
// measurements of other libraries.
//
//	sentences FOLDER [PRECISION]
//
// FOLDER has config.json and model.safetensors. PRECISION is a value of bert.Config.Precision.
// Requests and replies are lines of JSON on the standard input and output. A request has a batch
// and a duration in seconds. A reply has the median and the shortest time of a call, the number of
// calls, and the allocations per call. If the request asks for vectors, the reply also has the
// vectors.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/nn/bert"
	"github.com/flashkit-go/flashkit/safetensors"
)

type request struct {
	IDs, Starts []int32
	Seconds     float64
	Vectors     bool
}

type reply struct {
	Median  float64   `json:"median"`
	Best    float64   `json:"best"`
	Calls   int       `json:"calls"`
	Allocs  float64   `json:"allocs"`
	Vectors []float32 `json:"vectors,omitempty"`
}

func main() {
	if len(os.Args) != 2 && len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "sentences: usage: sentences FOLDER [PRECISION]")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], strings.Join(os.Args[2:], "")); err != nil {
		fmt.Fprintln(os.Stderr, "sentences:", err)
		os.Exit(1)
	}
}

func load(dir, precision string) (*bert.Model, error) {
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, err
	}
	c, err := bert.ParseConfig(text)
	if err != nil {
		return nil, err
	}
	c.Precision = precision
	weights, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		return nil, err
	}
	f, err := safetensors.Parse(weights)
	if err != nil {
		return nil, err
	}
	return bert.Load(c, f)
}

func run(ctx context.Context, dir, precision string) (err error) {
	m, err := load(dir, precision)
	if err != nil {
		return err
	}
	d, err := dispatch.Default(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	e := bert.NewEncoder(m, d)
	defer e.Close()
	s := e.NewStep()
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	for in.More() {
		var r request
		if err := in.Decode(&r); err != nil {
			return err
		}
		if len(r.Starts) == 0 {
			return errors.New("a request without starts")
		}
		vectors := make([]float32, (len(r.Starts)-1)*m.Config().Hidden)
		a, err := measure(func() error { return s.Vectors(ctx, vectors, bert.Batch{IDs: r.IDs, Starts: r.Starts}) }, r.Seconds)
		if err != nil {
			return err
		}
		if r.Vectors {
			a.Vectors = vectors
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
	return nil
}

// measure first makes one untimed call. It then repeats call for the given number of seconds and
// times each call.
func measure(call func() error, seconds float64) (reply, error) {
	if err := call(); err != nil {
		return reply{}, err
	}
	var before, after runtime.MemStats
	times := make([]float64, 0, 1<<16)
	runtime.ReadMemStats(&before)
	for end := time.Now().Add(time.Duration(seconds * 1e9)); len(times) == 0 || time.Now().Before(end) && len(times) < cap(times); {
		start := time.Now()
		if err := call(); err != nil {
			return reply{}, err
		}
		times = append(times, time.Since(start).Seconds())
	}
	runtime.ReadMemStats(&after)
	slices.Sort(times)
	return reply{Median: times[len(times)/2], Best: times[0], Calls: len(times), Allocs: float64(after.Mallocs-before.Mallocs) / float64(len(times))}, nil
}
