package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/outfile"
	"github.com/flashkit-go/flashkit/safetensors"
)

type cell struct {
	d      *dispatch.Dispatcher // runs the timed calls
	seen   *dispatch.Dispatcher // d, with an observer that sets kernel after each call
	kernel string               // kernel of the last observed call
	p      flashkit.Problem
	pass   flashkit.Pass
	args   *flashkit.Args
	last   time.Duration // time of the last call
}

var passes = map[string]flashkit.Pass{"fwd": flashkit.PassForward, "bwd": flashkit.PassBackward}

// open makes a cell and runs the cell's pass once. For a backward pass it first computes O and LSE,
// with the kernel that dispatch chooses. If like is not nil, the new cell's K and V use the memory
// of like's K and V.
func open(ctx context.Context, d *dispatch.Dispatcher, r *request, like *cell) (*cell, reply, error) {
	p, err := flashkit.ParseProblem(r.Problem)
	if err != nil {
		return nil, reply{}, err
	}
	pass, ok := passes[r.Pass]
	if !ok {
		return nil, reply{}, fmt.Errorf("pass %q: must be fwd or bwd", r.Pass)
	}
	c := &cell{d: d, p: p, pass: pass}
	if c.args, err = arguments(&p, pass, r); err != nil {
		return nil, reply{}, err
	}
	if like != nil {
		if err := errors.Join(share(&c.args.K, &like.args.K), share(&c.args.V, &like.args.V)); err != nil {
			return nil, reply{}, err
		}
	}
	if pass == flashkit.PassBackward {
		if err := d.Forward(ctx, p, c.args); err != nil {
			return nil, reply{}, err
		}
	}
	if r.Kernel != "" {
		if c.d, err = d.With(r.Kernel); err != nil {
			return nil, reply{}, err
		}
	}
	c.seen = c.d.WithObserver(func(r dispatch.Ran) { c.kernel = r.Kernel })
	limited, cancel := context.WithTimeout(ctx, time.Duration(r.Limit*float64(time.Second)))
	defer cancel()
	a, err := c.note(limited)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%s takes longer than %.3g s", c.kernel, r.Limit)
	}
	if r.Hold && err == nil {
		if c.d, err = d.With(c.kernel); err != nil {
			return nil, reply{}, err
		}
		c.seen = c.d
	}
	var set flashkit.Call
	if err == nil && set.Set(p, pass, c.args) == nil {
		a.Pairs = int64(p.Heads) * set.Area()
	}
	return c, a, err
}

// call runs the pass once with d, as a program would, and returns the time.
func (c *cell) call(ctx context.Context, d *dispatch.Dispatcher) (time.Duration, error) {
	start := time.Now()
	var err error
	if c.pass == flashkit.PassForward {
		err = d.Forward(ctx, c.p, c.args)
	} else {
		err = d.Backward(ctx, c.p, c.args)
	}
	return time.Since(start), err
}

// note makes one call and observes which kernel runs. It returns the call's kernel and time, and
// the bytes of K and V.
func (c *cell) note(ctx context.Context) (reply, error) {
	took, err := c.call(ctx, c.seen)
	c.last = took
	k, v := &c.args.K, &c.args.V
	bytes := float64(k.Len()*k.DType().Size() + v.Len()*v.DType().Size())
	return reply{Kernel: c.kernel, Seconds: took.Seconds(), Calls: 1, Bytes: bytes}, err
}

// saved recognizes the files that save writes, so that save replaces no other file.
var saved = outfile.Kind{Name: "outputs of bench/peers/ours", Is: func(begin []byte) bool {
	return bytes.Contains(begin, []byte(`{"__metadata__":{"writer":"bench/peers/ours"}`))
}}

// outputs returns the tensors that the pass writes, by the argument's name in lower case.
func (c *cell) outputs() map[string]*flashkit.Tensor {
	found := map[string]*flashkit.Tensor{}
	for _, a := range flashkit.Arguments() {
		if x := a.Of(c.args); a.Role(&c.p, c.pass)&flashkit.Output != 0 && !x.IsZero() {
			found[strings.ToLower(a.Name)] = x
		}
	}
	return found
}

func (c *cell) save(path string) error {
	f := safetensors.File{Metadata: map[string]string{"writer": "bench/peers/ours"}}
	for name, x := range c.outputs() {
		t, err := safetensors.Encode(name, *x)
		if err != nil {
			return err
		}
		f.Tensors = append(f.Tensors, t)
	}
	out, err := outfile.Create(path, saved)
	if err != nil {
		return err
	}
	return out.Commit(f.Write)
}

// arguments makes all arguments of a pass of p, except the arguments that r.Leave names. Inputs
// come from r.File or are random. Each tensor has its own memory. For a backward pass, O and LSE
// are zero.
func arguments(p *flashkit.Problem, pass flashkit.Pass, r *request) (*flashkit.Args, error) {
	args := &flashkit.Args{Seed: r.Seed}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if p.Ragged {
		if args.Seqs = sequences(p, r); args.Seqs == nil {
			return nil, fmt.Errorf("lens: %d and %d are not %d", len(r.Lens), len(r.KVLens), p.Batch)
		}
	}
	file, err := inputs(r.File)
	if err != nil {
		return nil, err
	}
	for _, a := range flashkit.Arguments() {
		role := a.Role(p, pass)
		if role == 0 || slices.Contains(r.Leave, a.Name) {
			continue
		}
		t := a.Of(args)
		if x, ok := file.Tensor(strings.ToLower(a.Name)); ok && role&flashkit.Input != 0 {
			if *t, err = x.Decode(); err != nil {
				return nil, err
			}
			continue
		}
		s := shape(p, &a, r)
		*t = flashkit.Zeros(a.DType(p), s[0], s[1], s[2], s[3])
		if role&flashkit.Input != 0 && a.Name != "O" && a.Name != "LSE" {
			fill(t, a.Name, r)
		}
	}
	return args, nil
}

// share makes t a view of x's memory, with the shape of t. t and x must have the same type and
// number of elements.
func share(t, x *flashkit.Tensor) error {
	s := t.Shape()
	switch {
	case t.DType() != x.DType() || t.Len() != x.Len():
		return fmt.Errorf("like: %d elements of %v are not %d of %v", x.Len(), x.DType(), t.Len(), t.DType())
	case t.DType() == flashkit.Float16:
		*t = flashkit.F16(x.Uint16s(), s[0], s[1], s[2], s[3])
	case t.DType() == flashkit.BFloat16:
		*t = flashkit.BF16(x.Uint16s(), s[0], s[1], s[2], s[3])
	default:
		*t = flashkit.F32(x.Float32s(), s[0], s[1], s[2], s[3])
	}
	return nil
}

func inputs(path string) (*safetensors.File, error) {
	if path == "" {
		return new(safetensors.File), nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return safetensors.Parse(b)
}
