package main

import (
	"fmt"
	"math"
	"regexp"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/input"
)

// shape changes the input's problem and tensors as the flags request, such as --dtype, --causal and
// --softcap.
func (f *runFlags) shape(cmd *cobra.Command, in *input.Input) error {
	before := in.Problem
	if err := f.convert(in); err != nil {
		return err
	}
	bands, err := f.mask.bands()
	if err != nil {
		return err
	}
	p := &in.Problem
	p.Band = bands[0]
	for _, x := range f.numbers {
		if !cmd.Flags().Changed(x.Name) {
			continue
		}
		if err := x.set(p); err != nil {
			return err
		}
	}
	if f.alibi && !p.Score.ALiBi {
		if q := in.Args.Q.Shape(); input.IsEmpty(q) {
			return fmt.Errorf("--alibi: q has %d heads and no elements: the input must have slopes", q[1])
		}
		in.Args.Slopes, p.Score.ALiBi = input.AlibiSlopes(p.Heads), true
	}
	if *p != before {
		in.Expected = flashkit.Tensor{} // the stored output is valid only for the unchanged problem
	}
	return nil
}

// A numberFlag is the flag of a float32 parameter of a problem, such as --softcap.
type numberFlag struct {
	flashkit.Parameter
	text *string
}

func addNumberFlags(flags *pflag.FlagSet) (list []numberFlag) {
	for _, x := range flashkit.Parameters() {
		if _, ok := x.Of(new(flashkit.Problem)).(*float32); ok {
			at := regexp.MustCompile(`\b` + x.Value + `\b`).FindStringIndex(x.About)
			usage := x.About[:at[0]] + "`" + x.Value + "`" + x.About[at[1]:]
			list = append(list, numberFlag{x, flags.String(x.Name, "", usage)})
		}
	}
	return list
}

// set sets the parameter in p to the flag's value. The value must be positive; a dropout may also
// be 0.
func (x *numberFlag) set(p *flashkit.Problem) error {
	from, most, want := math.SmallestNonzeroFloat32, math.MaxFloat32, "a positive number"
	if x.Feature == flashkit.FeatureDropout {
		from, most, want = 0, 1-0x1p-24, "a probability, at least 0 and less than 1"
	}
	n, err := strconv.ParseFloat(*x.text, 32)
	if err != nil || !(n >= from && n <= most) {
		return fmt.Errorf("--%s %q: must be %s", x.Name, *x.text, want)
	}
	*x.Of(p).(*float32) = float32(n)
	return nil
}

// convert converts the tensors to the types in --dtype, which may give K and V another type than Q.
// If the bias then has another type than Q, the bias becomes float32.
func (f *runFlags) convert(in *input.Input) error {
	p := &in.Problem
	if f.dtype != "" {
		var err error
		if p.DType, p.KVDType, err = input.ParseTypes(f.dtype); err != nil {
			return fmt.Errorf("--dtype %q: must be f32, f16, bf16, f32-kvf16 or f32-kvbf16", f.dtype)
		}
		for _, a := range flashkit.Arguments() {
			if s := input.SideOf(a.Name); s == input.Queries || s == input.Keys {
				x := a.Of(&in.Args)
				*x = input.Converted(*x, a.DType(p))
			}
		}
	}
	if bias := &in.Args.Bias; bias.DType() != p.DType {
		*bias = input.Converted(*bias, flashkit.Float32)
	}
	return nil
}
