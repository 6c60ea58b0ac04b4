// Package mine is a backend with one kernel.
package mine

import (
	"context"
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
)

type Backend struct{}

func New() *Backend { return new(Backend) }

func (*Backend) Name() string { return "mine" }
func (*Backend) Close() error { return nil }

func (*Backend) Kernels() []flashkit.Kernel {
	return []flashkit.Kernel{{
		Name: "mine/fwd_plain", About: "Go: a row at a time, every score kept; bound by scalar arithmetic",
		Pass: flashkit.PassForward, DTypes: []flashkit.DType{flashkit.Float32},
		Refuses: refuses, Cost: cost, Run: forward,
	}}
}

func refuses(c *flashkit.Call) string {
	if c.DType != flashkit.Float32 {
		return "takes f32 only"
	}
	return ""
}

func cost(c *flashkit.Call) time.Duration {
	return time.Duration(c.FLOPs()) // one a nanosecond
}

func forward(ctx context.Context, c *flashkit.Call) error {
	p, f := c.Problem, c.Args
	scale := float32(p.SoftmaxScale())
	s, sum := make([]float32, p.KVLen), make([]float64, p.VDim)
	for b := range p.Batch {
		for h := range p.Heads {
			g := h / (p.Heads / p.KVHeads)
			for i := range p.QLen {
				if err := ctx.Err(); err != nil {
					return err
				}
				lo, hi := p.Keys(i)
				q := f.Q.Float32s()[f.Q.Offset(b, h, i):][:p.Dim]
				o := f.O.Float32s()[f.O.Offset(b, h, i):][:p.VDim]
				m := float32(math.Inf(-1))
				for j := lo; j < hi; j++ {
					k := f.K.Float32s()[f.K.Offset(b, g, j):][:p.Dim]
					s[j] = 0
					for c := range q {
						s[j] += q[c] * k[c]
					}
					s[j] *= scale
					m = max(m, s[j])
				}
				clear(o)
				clear(sum)
				l := 0.0 // many keys need sums of more digits than float32 has, or sums of sums
				for j := lo; j < hi; j++ {
					w := math.Exp(float64(s[j] - m))
					l += w
					v := f.V.Float32s()[f.V.Offset(b, g, j):][:p.VDim]
					for c := range o {
						sum[c] += w * float64(v[c])
					}
				}
				if lo < hi {
					for c := range o {
						o[c] = float32(sum[c] / l)
					}
				}
				if !f.LSE.IsZero() {
					f.LSE.Float32s()[f.LSE.Offset(b, h, i)] = float32(float64(m) + math.Log(l))
				}
			}
		}
	}
	return nil
}
