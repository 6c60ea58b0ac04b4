// Command product times matrix products of internal/matmul for bench/peers/matmul.py. The script
// starts this command once for each number of threads. The script alternates the command's
// measurements with measurements of other libraries.
//
// Requests and replies are lines of JSON on the standard input and output. A request's operation is
// "op":
//
//	open  read A [m, k], B [k, n] and the bias [n], float32, from a "file", and pack B;
//	      "precision" is 0 for a float32 product, 1 for B in bf16, 2 for A and B in bf16, 3 for 8 bits
//	time  compute the product for "seconds", with or without "bias"; reply with the seconds of the
//	      median and the fastest call
//	run   compute the product "times" times, so that tools/arm64/products.py can count its instructions
//	peak  measure the processor's peak rate of multiply-adds, in FLOP/s; of bf16 with "precision" 2
//	save  write C, [m, n], to a "file"
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/internal/matmul"
	"github.com/flashkit-go/flashkit/internal/outfile"
)

type request struct {
	Op      string
	File    string
	M, N, K int
	Bias    bool
	Seconds float64
	Times   int

	Precision matmul.Precision
}

type reply struct {
	Error  string  `json:"error,omitempty"`
	Median float64 `json:"median,omitempty"`
	Best   float64 `json:"best,omitempty"`
	Peak   float64 `json:"peak,omitempty"`
}

type product struct {
	engine *matmul.Engine
	args   matmul.Args
	b      matmul.Packed
	bias   []float32
}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "product:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	p := &product{engine: matmul.New()}
	defer p.engine.Close()
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	for in.More() {
		var r request
		if err := in.Decode(&r); err != nil {
			return err
		}
		answer, err := p.answer(ctx, &r)
		if err != nil {
			answer = reply{Error: err.Error()}
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
	}
	return nil
}

func (p *product) answer(ctx context.Context, r *request) (reply, error) {
	switch r.Op {
	case "open":
		return reply{}, p.open(r)
	case "time":
		return p.time(ctx, r)
	case "run":
		return reply{}, p.run(ctx, r)
	case "peak":
		t := flashkit.Float32
		if r.Precision == matmul.BF16 {
			t = flashkit.BFloat16
		}
		rate, _ := simd.Peak(t)
		return reply{Peak: rate}, nil
	case "save":
		data, err := binary.Append(nil, binary.LittleEndian, p.args.C.Data)
		if err != nil {
			return reply{}, err
		}
		return reply{}, outfile.Write(r.File, numbers, data)
	}
	return reply{}, fmt.Errorf("op %q: there is none such", r.Op)
}

// numbers describes the files that save writes. These files have no mark at their beginning, so
// save replaces only empty files.
var numbers = outfile.Kind{Name: "empty", Is: func([]byte) bool { return false }}

func (p *product) open(r *request) error {
	data, err := os.ReadFile(r.File)
	if err != nil {
		return err
	}
	a, b, bias := make([]float32, r.M*r.K), make([]float32, r.K*r.N), make([]float32, r.N)
	file := bytes.NewReader(data)
	for _, x := range [][]float32{a, b, bias} {
		if err := binary.Read(file, binary.LittleEndian, x); err != nil {
			return err
		}
	}
	p.b.Precision = r.Precision
	p.b.Pack(matmul.Dense(b, r.K, r.N))
	p.args = matmul.Args{A: matmul.Dense(a, r.M, r.K), C: matmul.Dense(make([]float32, r.M*r.N), r.M, r.N), B: &p.b}
	p.bias = bias
	return nil
}

func (p *product) run(ctx context.Context, r *request) error {
	args := p.args
	for range r.Times {
		if err := p.engine.Run(ctx, &args); err != nil {
			return err
		}
	}
	return nil
}

func (p *product) time(ctx context.Context, r *request) (reply, error) {
	args := p.args
	if r.Bias {
		args.Bias = p.bias
	}
	if err := p.engine.Run(ctx, &args); err != nil {
		return reply{}, err
	}
	var times []time.Duration
	limit := time.Duration(r.Seconds * float64(time.Second))
	for begin := time.Now(); len(times) == 0 || time.Since(begin) < limit; {
		start := time.Now()
		if err := p.engine.Run(ctx, &args); err != nil {
			return reply{}, err
		}
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	return reply{Median: times[len(times)/2].Seconds(), Best: times[0].Seconds()}, nil
}
