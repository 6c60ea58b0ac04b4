// Command sentences times package nn/encoder for bench/peers/minilm.py. The script starts this command
// once for each number of threads. The script alternates the command's measurements with
// measurements of other libraries.
//
//	sentences FOLDER [PRECISION]
//
// FOLDER is a published model. PRECISION is a value of encoder.Options.Precision.
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
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/flashkit-go/flashkit/nn/encoder"
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

func run(ctx context.Context, dir, precision string) error {
	e, err := encoder.OpenWith(ctx, dir, encoder.Options{Precision: precision, MaxTokens: 512})
	if err != nil {
		return err
	}
	defer e.Close()
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	for in.More() {
		var r request
		if err := in.Decode(&r); err != nil {
			return err
		}
		if len(r.Starts) == 0 {
			return errors.New("a request without starts")
		}
		var sequences [][]int32
		for i := 1; i < len(r.Starts); i++ {
			if r.Starts[i-1] < 0 || r.Starts[i-1] > r.Starts[i] || int(r.Starts[i]) > len(r.IDs) {
				return errors.New("a request with wrong starts")
			}
			sequences = append(sequences, r.IDs[r.Starts[i-1]:r.Starts[i]])
		}
		var vectors [][]float32
		a, err := measure(func() (err error) { vectors, err = e.EmbedTokens(ctx, sequences); return err }, r.Seconds)
		if err != nil {
			return err
		}
		if r.Vectors {
			a.Vectors = slices.Concat(vectors...)
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
