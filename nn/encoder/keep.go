package encoder

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/nn"
)

// KeepFloat32 returns products for Options.Float32. With them, the cosine of each text's vector and its
// vector in f32 is at least least, which must be above 0 and below 1. The first products are
// o.Float32, and the others reduce the error most for their size. The list is empty if none is needed.
//
// KeepFloat32 opens the model once for each product and embeds the texts, with only that product
// in o.Precision. A few hundred texts like the program's texts are enough. o.Progress is called
// after each product. The list does not depend on o.Workers, but it may depend on the processor.
func KeepFloat32(ctx context.Context, dir string, o Options, texts []string, least float64) ([]string, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	switch {
	case precisions[o.Precision] == nn.Float32:
		return nil, problem("Options.Precision", fmt.Sprintf("%q", o.Precision), "must be bf16-weights, bf16 or int8")
	case len(texts) == 0:
		return nil, problem("texts", "no texts", "must have at least one text")
	case !(least > 0 && least < 1):
		return nil, problem("least", least, "must be above 0 and below 1")
	}
	if o.Dispatcher == nil {
		d, err := dispatch.Default(ctx)
		if err != nil {
			return nil, err
		}
		defer d.Close()
		o.Dispatcher = d
	}
	k := &keeper{ctx: ctx, dir: dir, options: o, texts: texts}
	if err := k.measure(); err != nil {
		return nil, err
	}
	return k.choose(1 - least)
}

// A keeper chooses products for KeepFloat32.
type keeper struct {
	ctx     context.Context
	dir     string
	options Options
	texts   []string
	smooth  *calibration
	exact   [][]float32 // the texts' vectors in f32
	names   []string    // of products in o.Precision, in their order of use
	sizes   []float64   // their numbers of weights
	errors  [][]float64 // [product][text], with only that product in o.Precision
}

// measure sets the fields that the choice needs.
func (k *keeper) measure() (err error) {
	if k.smooth, err = calibrate(k.ctx, k.dir, k.options); err != nil {
		return err
	}
	if err = k.open(k.options.Float32, k.list); err != nil {
		return err
	}
	err = k.open(slices.Concat(k.names, k.options.Float32), func(e *Encoder) (err error) {
		k.exact, err = e.Embed(k.ctx, k.texts)
		return err
	})
	for i := 0; i < len(k.names) && err == nil; i++ {
		var apart []float64
		apart, err = k.apart(slices.Concat(k.names[:i], k.names[i+1:], k.options.Float32))
		k.errors = append(k.errors, apart)
		if k.options.Progress != nil && err == nil {
			k.options.Progress(i+1, len(k.names))
		}
	}
	return err
}

// list lists the products of a model.
func (k *keeper) list(e *Encoder) error {
	for _, l := range e.model.body().layers {
		for _, p := range l.products() {
			if !slices.Contains(k.options.Float32, p.Weight.Name) {
				k.names = append(k.names, p.Weight.Name)
				k.sizes = append(k.sizes, float64(p.Weight.Shape[0])*float64(p.Weight.Shape[1]))
			}
		}
	}
	return nil
}

// open opens the model with the given products in f32, and calls use.
func (k *keeper) open(kept []string, use func(e *Encoder) error) error {
	o := k.options
	o.Float32, o.Progress = kept, nil
	e, err := openSmoothed(k.ctx, k.dir, o, k.smooth)
	if err != nil {
		return err
	}
	defer e.Close()
	return use(e)
}

// apart returns 1 minus each text's cosine, with the given products in f32.
func (k *keeper) apart(kept []string) (apart []float64, err error) {
	err = k.open(kept, func(e *Encoder) error {
		vectors, err := e.Embed(k.ctx, k.texts)
		for i, v := range vectors {
			x := 1 - cosine(v, k.exact[i])
			if math.IsNaN(x) {
				return problem(fmt.Sprintf("texts[%d]", i), "a vector of NaN or 0", "must have a finite vector that is not 0")
			}
			apart = append(apart, x)
		}
		return err
	})
	return apart, err
}

// choose returns the products to keep. It keeps the products with the largest errors for their
// sizes, for the text with the largest error. Errors of products are about independent, so their sum
// predicts how many products are needed.
func (k *keeper) choose(most float64) ([]string, error) {
	kept, left := slices.Clone(k.options.Float32), make([]int, len(k.names))
	for i := range left {
		left[i] = i
	}
	for len(left) > 0 {
		apart, err := k.apart(kept)
		if err != nil {
			return nil, err
		}
		largest := slices.Max(apart)
		if largest <= most {
			break
		}
		text, sum := slices.Index(apart, largest), 0.
		for _, i := range left {
			sum += k.errors[i][text]
		}
		slices.SortStableFunc(left, func(a, b int) int {
			return cmp.Compare(k.errors[b][text]/k.sizes[b], k.errors[a][text]/k.sizes[a])
		})
		for enough := sum * most / largest; len(left) > 0; {
			kept, sum, left = append(kept, k.names[left[0]]), sum-k.errors[left[0]][text], left[1:]
			if sum <= enough {
				break
			}
		}
	}
	return kept, nil
}

// cosine returns the cosine of two vectors of the same length, or NaN if one is 0.
func cosine(a, b []float32) float64 {
	var ab, aa, bb float64
	for i, x := range a {
		y := float64(b[i])
		ab, aa, bb = ab+float64(x)*y, aa+float64(x)*float64(x), bb+y*y
	}
	return ab / math.Sqrt(aa*bb)
}
