//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// compute-sanitizer runs the tests below. Each instance is a subtest of its own, so that many
// processes can share them.

// The kernels' plans hold on the device: every instance loads and launches, including merges and
// sums.
func TestEveryInstance(t *testing.T) {
	eachInstance(t, func(t *testing.T, b *Backend, s *family, p flashkit.Problem) {
		p.Batch, p.QLen = 1, 20+rand.IntN(10)
		masked, many := p, p
		masked.Band, masked.QLen = flashkit.Causal(), 300
		many.Heads, many.KVHeads = 3*b.dev.SMs, 3*b.dev.SMs
		up := many
		up.Band = flashkit.Causal()
		some, few := up, up
		some.Dim, some.VDim, few.Dim, few.VDim = min(some.Dim, 96), min(some.VDim, 96), min(few.Dim, 80), min(few.VDim, 80)
		for i, p := range []flashkit.Problem{p, inParts(s, p), inPairs(p), inWaves(p), masked, many, up, some, few} {
			if !s.fits(&b.dev, p) || i > 0 && !s.hopper && s.rows == 0 || i > 1 && s.pass == flashkit.PassForward {
				continue
			}
			c := newDeviceCall(t, b, p.String())
			if c.fwdOptions.Kernel = "cuda/" + s.name; s.pass == flashkit.PassForward {
				require.NoError(t, c.forward(), p)
			} else {
				c.bwdOptions.Kernel = c.fwdOptions.Kernel
				require.NoError(t, c.backward(), p)
			}
			require.NoError(t, c.s.Sync(), p)
			c.close(t)
		}
	})
}

// Calls whose first rows see no keys end, with several tiles per multiprocessor. Some warpgroups
// that take turns have no keys; they do not wait for warpgroups that wait for them.
func TestRowsWithoutKeys(t *testing.T) {
	eachInstance(t, func(t *testing.T, b *Backend, s *family, p flashkit.Problem) {
		p.Batch, p.Heads, p.KVHeads, p.KVLen, p.Band = 1, 3*b.dev.SMs, 3*b.dev.SMs, 20, flashkit.Causal()
		for _, rows := range []int{70, 198, 250} {
			p.QLen = rows
			for _, form := range []string{"", "-sink", "-ragged", "-softcap5", "-alibi", "-bias", "-mask", "-dropout0.1", "-softcap5-alibi", "-sink-ragged-page16"} {
				p := problem(t, p.String()+form)
				if !s.fits(&b.dev, p) {
					continue
				}
				c := newDeviceCall(t, b, p.String())
				c.use("cuda/"+s.name, s.pass)
				require.NoError(t, c.forward(), p)
				if s.pass == flashkit.PassBackward {
					require.NoError(t, c.backward(), p)
				}
				require.NoError(t, c.s.Sync(), p)
				c.close(t)
			}
		}
	})
}

// Every instance with features loads and launches, also with lengths and pages.
func TestEveryFeaturedInstance(t *testing.T) {
	eachInstance(t, func(t *testing.T, b *Backend, s *family, p flashkit.Problem) {
		group := p.Int8Group
		p.Int8Group = 0 // which names have after the forms
		all, many := p, p
		p.Band, many.Band, many.Heads, many.KVHeads = flashkit.Causal(), flashkit.Causal(), 3*b.dev.SMs, 3*b.dev.SMs
		forms := []string{p.String() + "-sink-ragged"}
		if s.hopper && s.pass == flashkit.PassBackward {
			forms = append(forms, all.String()+"-sink-ragged", many.String()+"-sink-ragged")
		}
		for _, form := range []string{"-softcap5-alibi", "-softcap5", "-alibi", "-bias", "-mask", "-dropout0.1", "-softcap5-alibi-bias-mask-sink-dropout0.1", "-alibi-ragged-page8", "-mask-sink-ragged-page16-carry",
			"-ranges1", "-ranges2-sink-ragged", "-rowmax", "-softcap5-ragged-rowmax", "-softcap5-bias-ranges2"} {
			forms = append(forms, p.String()+form)
		}
		for _, name := range forms {
			p := problem(t, name)
			if p.Int8Group = group; !s.fits(&b.dev, p) {
				continue
			}
			c := newDeviceCall(t, b, p.String())
			if q := c.args.Seqs; q != nil {
				q.QLens, q.KVLens = []int32{7, 20}, []int32{299, 31}
			}
			if c.fwdOptions.Kernel = "cuda/" + s.name; s.pass == flashkit.PassForward {
				require.NoError(t, c.forward(), p)
			} else {
				if c.bwdOptions.Kernel, c.fwdOptions.Kernel = c.fwdOptions.Kernel, ""; p.Heads == many.Heads {
					c.fwdOptions.Kernel = "cuda/fwd_sm80" // one tile per block: racecheck credits an arrival only to the arriving thread
				}
				require.NoError(t, c.forward(), p)
				require.NoError(t, c.backward(), p)
			}
			require.NoError(t, c.s.Sync(), p)
			c.close(t)
		}
	})
}

// eachInstance runs f as a subtest for every family, dtype and padded head dim, with a small
// problem.
func eachInstance(t *testing.T, f func(t *testing.T, b *Backend, s *family, p flashkit.Problem)) {
	b := openGPU(t)
	for i := range families {
		s := &families[i]
		for _, dtype := range s.dtypes {
			for _, dim := range s.dims {
				p := flashkit.Problem{Batch: 2, Heads: 2, KVHeads: 1, QLen: 20, KVLen: 300, Dim: dim.dim, VDim: dim.vDim, DType: dtype}
				of := s
				if s == &families[decodeInt8] {
					p.Int8Group, of = 32, &families[decodeSM80]
				}
				t.Run(fmt.Sprintf("%s/%v-%s", s.name, dtype, dim.name()), func(t *testing.T) { f(t, b, of, p) })
			}
		}
	}
}
