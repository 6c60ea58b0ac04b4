package input

import (
	"errors"
	"strings"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/safetensors"
)

// NewWork returns a Work with zero outputs.
func NewWork(in *Input, backward bool) *Work {
	return &Work{in, in.WithOutputs(backward), backward}
}

// eachOutput calls f with every output of the passes and the output's name in files.
func eachOutput(p *flashkit.Problem, args *flashkit.Args, backward bool, f func(name string, a *flashkit.Argument, t *flashkit.Tensor)) {
	for _, a := range flashkit.Arguments() {
		if writes(&a, p, backward) {
			f(strings.ToLower(a.Name), &a, a.Of(args))
		}
	}
}

// File returns the outputs as a safetensors file in the input's layout. lse has rank 3, dsink rank
// 1.
func (w *Work) File(kernel, forward string) (*safetensors.File, error) {
	p := w.Problem
	f := &safetensors.File{Metadata: map[string]string{"problem": p.String(), "kernel": kernel, "layout": string(w.Layout)}}
	if forward != "" {
		f.Metadata["forward_kernel"] = forward
	}
	var failed error
	eachOutput(&p, &w.Args, w.Backward, func(name string, a *flashkit.Argument, t *flashkit.Tensor) {
		encode := safetensors.Encode
		if w.Layout.Of(a.Name) == BSHD {
			encode = safetensors.EncodeBSHD
		}
		x, err := encode(name, *t)
		failed = errors.Join(failed, err)
		switch a.Name {
		case "LSE", "RowMax":
			x.Shape = x.Shape[:3]
		case "DSink":
			x.Shape = x.Shape[1:2]
		}
		f.Tensors = append(f.Tensors, x)
	})
	return f, failed
}

// A Work is an input with the outputs of a forward pass or of both passes.
type Work struct {
	*Input
	Args     flashkit.Args
	Backward bool
}
