// Command encoders times package nn/encoder for bench/peers/encoders.py. The script starts this
// command once for each number of threads, and alternates the command's measurements with
// measurements of other libraries.
//
//	encoders FOLDER [PRECISION [LEAST TEXTS]]
//
// PRECISION is a value of encoder.Options.Precision, or int8-calibrated, which is int8 with a
// calibration. With LEAST, products stay in float32, so that the cosines of the texts in the file
// TEXTS, one a line, are at least LEAST. The first line of the output has their names. Requests and replies are lines of JSON on the
// standard input and output. A request has texts, or a query and texts, and a duration in seconds. A
// call tokenizes and embeds the texts, or scores them. A reply has the median and the shortest time
// of a call, the number of calls, and the allocations per call. If the request asks for results, the
// reply also has the vectors, one after the other, or the scores.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flashkit-go/flashkit/nn/encoder"
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
	Allocs  float64   `json:"allocs"`
	Results []float32 `json:"results,omitempty"`
}

func main() {
	if n := len(os.Args); n != 2 && n != 3 && n != 5 {
		fmt.Fprintln(os.Stderr, "encoders: usage: encoders FOLDER [PRECISION [LEAST TEXTS]]")
		os.Exit(2)
	}
	ctx := context.Background()
	o, err := options(ctx, os.Args[1], os.Args[2:])
	if err == nil {
		err = run(ctx, os.Args[1], o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "encoders:", err)
		os.Exit(1)
	}
}

// sentences are the texts of a calibration.
var sentences = []string{
	"The river rose after three days of rain, and the old bridge was closed.",
	"How do I reset the password of my account?",
	"Revenue grew by 12 % in the third quarter, mostly in Asia.",
	"Cells divide, and each of the two has the same genes.",
}

// options returns the options of the command line.
func options(ctx context.Context, dir string, args []string) (encoder.Options, error) {
	o := encoder.Options{Overflow: encoder.Refuse}
	if len(args) > 0 {
		o.Precision = strings.TrimSuffix(args[0], "-calibrated")
		if o.Precision != args[0] {
			o.Calibration = sentences
		}
	}
	if len(args) < 3 {
		return o, nil
	}
	least, err := strconv.ParseFloat(args[1], 64)
	if err != nil {
		return o, err
	}
	texts, err := os.ReadFile(args[2])
	if err != nil {
		return o, err
	}
	o.Float32, err = encoder.KeepFloat32(ctx, dir, o, strings.Split(strings.TrimSpace(string(texts)), "\n"), least)
	return o, err
}

// run answers requests.
func run(ctx context.Context, dir string, o encoder.Options) error {
	e, err := encoder.OpenWith(ctx, dir, o)
	if err != nil {
		return err
	}
	defer e.Close()
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	if err := out.Encode(map[string][]string{"float32": o.Float32}); err != nil {
		return err
	}
	for in.More() {
		var r request
		if err := in.Decode(&r); err != nil {
			return err
		}
		if len(r.Texts) == 0 {
			return errors.New("a request without texts")
		}
		var results []float32
		a, err := measure(func() (err error) {
			results, err = call(ctx, e, &r)
			return err
		}, r.Seconds)
		if err != nil {
			return err
		}
		if r.Results {
			a.Results = results
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
	return nil
}

// call computes a request's vectors or scores.
func call(ctx context.Context, e *encoder.Encoder, r *request) ([]float32, error) {
	if r.Query != "" {
		return e.Score(ctx, r.Query, r.Texts)
	}
	vectors, err := e.Embed(ctx, r.Texts)
	if err != nil || !r.Results {
		return nil, err
	}
	return slices.Concat(vectors...), nil
}

// measure repeats call for the given number of seconds, at least once, and times each call.
func measure(call func() error, seconds float64) (reply, error) {
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
