//go:build !purego

package simd

import (
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// decodeForms are suffixes of problem names: layouts of K and V, and score features. Calls with a
// suffix are compared with a plain call.
var decodeForms = []string{
	"-ragged", "-ragged-page1", "-ragged-page4", "-ragged-page16", "-ragged-page64", "-ragged-page256",
	"-softcap30", "-alibi", "-bias", "-mask", "-sink", "-dropout0.1", "-carry",
}

// BenchmarkDecodeForms measures a plain call and calls of other forms in turns. It reports the
// ratios of their median times and of their shortest times. FLASHKIT_KERNEL names the kernel.
// FLASHKIT_BENCH and FLASHKIT_FORMS replace problems and forms by others, separated by commas.
func BenchmarkDecodeForms(b *testing.B) {
	names := "b1-h32-g8-n1-m32768-d128-bf16,b1-h32-g8-n1-m32768-d128-f32,b4-h32-g8-n1-m1024-d64-f32"
	if list := os.Getenv("FLASHKIT_BENCH"); list != "" {
		names = list
	}
	kernel := "simd/decode_avx512"
	if name := os.Getenv("FLASHKIT_KERNEL"); name != "" {
		kernel = name
	}
	forms := decodeForms
	if list := os.Getenv("FLASHKIT_FORMS"); list != "" {
		forms = strings.Split(list, ",")
	}
	backend := New()
	at := slices.IndexFunc(backend.Kernels(), func(k flashkit.Kernel) bool { return k.Name == kernel })
	require.GreaterOrEqual(b, at, 0, kernel)
	k := backend.Kernels()[at]
	for name := range strings.SplitSeq(names, ",") {
		b.Run(name, func(b *testing.B) {
			calls := make([]flashkit.Call, 1+len(forms))
			for i := range calls {
				full := name
				if i > 0 {
					full += forms[i-1]
				}
				p, err := flashkit.ParseProblem(full)
				require.NoError(b, err)
				args := formOf(p)
				if i > 0 { // in the same memory, because times depend on the address
					args.K, args.V = sameMemory(&calls[0].Args.K, &args.K), sameMemory(&calls[0].Args.V, &args.V)
				}
				require.NoError(b, calls[i].Set(p, k.Pass, args))
				if reason := k.Fits(&calls[i]); reason != "" {
					b.Skip(reason)
				}
			}
			times := make([][]float64, len(calls))
			for b.Loop() {
				for i := range calls {
					start := time.Now()
					require.NoError(b, k.Do(b.Context(), &calls[i]))
					times[i] = append(times[i], time.Since(start).Seconds())
				}
			}
			for i := range times {
				slices.Sort(times[i])
			}
			plain := times[0]
			b.ReportMetric(plain[len(plain)/2]*1e6, "µs")
			for i, form := range forms {
				t := times[i+1]
				b.ReportMetric(t[len(t)/2]/plain[len(plain)/2], "med"+form)
				b.ReportMetric(t[0]/plain[0], "min"+form)
			}
		})
	}
}

// sameMemory returns a tensor of the shape of t in the memory of x. t and x have the same number of
// elements.
func sameMemory(x, t *flashkit.Tensor) flashkit.Tensor {
	s := t.Shape()
	switch x.DType() {
	case flashkit.Float16:
		return flashkit.F16(x.Uint16s(), s[0], s[1], s[2], s[3])
	case flashkit.BFloat16:
		return flashkit.BF16(x.Uint16s(), s[0], s[1], s[2], s[3])
	}
	return flashkit.F32(x.Float32s(), s[0], s[1], s[2], s[3])
}

// formOf returns arguments of p, with pages in random order, and masks that hide a tenth of the keys.
func formOf(p flashkit.Problem) *flashkit.Args {
	r := rand.New(rand.NewPCG(1, 2))
	args := flashkit.NewArgs(p, flashkit.PassForward)
	for i := range args.Mask.Bools() {
		args.Mask.Bools()[i] = r.IntN(10) > 0
	}
	for _, t := range []*flashkit.Tensor{&args.Q, &args.K, &args.V, &args.Bias} {
		for i := range t.Float32s() {
			t.Float32s()[i] = r.Float32() - .5
		}
		for i := range t.Uint16s() {
			t.Uint16s()[i] = 0x3c00 + uint16(r.Uint32()&0x81ff)
		}
	}
	if p.Ragged {
		args.Seqs.KVLens = slices.Repeat([]int32{int32(p.KVLen)}, p.Batch)
	}
	if p.Page > 0 {
		for i, page := range r.Perm(len(args.Seqs.Pages)) {
			args.Seqs.Pages[i] = int32(page)
		}
	}
	return args
}
