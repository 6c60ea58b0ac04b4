package conformance

import (
	"math"
	"math/rand/v2"

	"github.com/flashkit-go/flashkit"
)

// The arrays k and v of Inputs hold the products of int8 elements and their scales. Scales have few
// bits, so float32 represents the products exactly.

// fitInt8 clamps p's group of int8 elements to the head dim, and drops KVDType if there is a group.
func fitInt8(p *flashkit.Problem) {
	if p.Int8Group != 0 {
		p.Int8Group, p.KVDType = min(p.Int8Group, max(p.Dim, p.VDim)), 0
	}
}

// scaleShape returns the shape of the scales of K, or of V.
func scaleShape(p *flashkit.Problem, isV bool) [4]int {
	s := p.KShape()
	if isV {
		s = p.VShape()
	}
	s[3] = (s[3]-1)/max(1, p.Int8Group) + 1
	return s
}

// newInt8 turns the noise in k and v into products of int8 elements from -128 to 124 and scales.
func (in *Inputs) newInt8(array func(name string, shape [4]int) []float32) {
	p := &in.p
	in.narrowScales = true
	in.kScale, in.vScale = array("kscale", scaleShape(p, false)), array("vscale", scaleShape(p, true))
	for _, list := range [...][]float32{in.kScale, in.vScale} {
		for i, x := range list {
			list[i] = (x + 2.0625) / 128 // 1/2048 to 1/32
		}
	}
	in.eachGroup(func(scale *float32, group []float32) {
		for i, x := range group {
			group[i] = 64 * x * *scale
		}
	})
}

// eachGroup calls f with each scale and the elements of K or V that it multiplies.
func (in *Inputs) eachGroup(f func(scale *float32, group []float32)) {
	for i, x := range [...][]float32{in.k, in.v} {
		scales, dim := [...][]float32{in.kScale, in.vScale}[i], [...]int{in.p.Dim, in.p.VDim}[i]
		eachRow(x, [4]int{1, 1, 1, dim}, func(_ int, row []float32) {
			for at := 0; at < dim; at += in.p.Int8Group {
				f(&scales[0], row[at:min(at+in.p.Int8Group, dim)])
				scales = scales[1:]
			}
		})
	}
}

// largeQuery makes one element of each row of Q large, where the keys are 0.
func largeQuery(in *Inputs) {
	for i := 0; i < len(in.q); i += in.p.Dim {
		in.q[i] = 1 << 13
	}
	for i := 0; i < len(in.k); i += in.p.Dim {
		in.k[i] = 0
	}
}

// codes returns the int8 elements of K or V. Elements of a group whose scale is 0 or not finite are 1.
func (in *Inputs) codes(isV bool) []float32 {
	near := *in
	near.k, near.v = append([]float32(nil), in.k...), append([]float32(nil), in.v...)
	near.eachGroup(func(scale *float32, group []float32) {
		for i, x := range group {
			if group[i] = x / *scale; *scale == 0 || *scale-*scale != 0 {
				group[i] = 1
			}
		}
	})
	if isV {
		return near.v
	}
	return near.k
}

// randomInt8 quantizes K and V to int8 elements with random scales from r.
func (in *Inputs) randomInt8(r *rand.Rand) {
	if in.p.Int8Group == 0 {
		return
	}
	round := rounder(flashkit.Float16)
	in.narrowScales = r.IntN(2) == 0
	in.eachGroup(func(scale *float32, group []float32) {
		*scale = round(float32(.005 + .03*r.Float64()))
		for i, x := range group {
			code := math.RoundToEven(float64(x) / float64(*scale))
			group[i] = float32(max(-128, min(127, code))) * *scale
		}
	})
}

// nanScales sets the scales of keys that no row sees to NaN, or to another number.
func nanScales(x float32) func(in *Inputs) {
	return func(in *Inputs) {
		hide(x)(in)
		in.eachGroup(func(scale *float32, group []float32) {
			if v := group[0]; v-v != 0 {
				*scale = x
			}
		})
	}
}

// zeroScales sets the scales of each third group, and its products, to 0.
func zeroScales(in *Inputs) {
	n := 0
	in.eachGroup(func(scale *float32, group []float32) {
		if n++; n%3 == 0 {
			*scale = 0
			clear(group)
		}
	})
}

// wideScales stores the scales as float32, with more bits than f16 has.
func wideScales(in *Inputs) {
	in.narrowScales = false
	in.eachGroup(func(scale *float32, group []float32) {
		for i := range group {
			group[i] *= 1 + 0x1p-12
		}
		*scale *= 1 + 0x1p-12
	})
}

// longScales gives scales the eleven bits of f16.
func longScales(in *Inputs) {
	round := rounder(flashkit.Float16)
	in.eachGroup(func(scale *float32, group []float32) {
		long := round(*scale * (1 + 0x1p-9))
		for i, x := range group {
			group[i] = x / *scale * long
		}
		*scale = long
	})
}

// lowestCodes sets each third element of K and V to -128.
func lowestCodes(in *Inputs) {
	in.eachGroup(func(scale *float32, group []float32) {
		for i := 0; i < len(group); i += 3 {
			group[i] = -128 * *scale
		}
	})
}
