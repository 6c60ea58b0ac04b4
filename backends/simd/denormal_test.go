package simd_test

import (
	"strings"
	"testing"
)

// BenchmarkDenormal measures the vector kernels with denormal and with ordinary inputs. Only vector
// kernels flush denormal numbers to 0.
func BenchmarkDenormal(b *testing.B) {
	c := newCall(b, "b1-h1-g1-n512-m512-d64-f32")
	for _, by := range []struct {
		name   string
		factor float32
	}{{"ordinary", 1}, {"denormal", 1e-39}} {
		for _, x := range [][]float32{c.fwd.Q.Float32s(), c.fwd.K.Float32s(), c.fwd.V.Float32s(), c.bwd.DO.Float32s()} {
			for i := range x {
				x[i] *= by.factor
			}
		}
		for _, k := range c.kernels() {
			if strings.HasSuffix(k.Name, "generic") {
				continue
			}
			b.Run(k.Name+"/"+by.name, func(b *testing.B) {
				for b.Loop() {
					c.run(b.Context(), k)
				}
			})
		}
	}
}
