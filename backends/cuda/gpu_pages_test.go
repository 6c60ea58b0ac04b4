//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/hostmem"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// mostPage is the largest page size of the tests.
const mostPage = 256

// Every kernel that supports pages reads pages of any size, in any order.
func TestEveryPageSize(t *testing.T) {
	b := openGPU(t)
	for i := range families {
		s := &families[i]
		if s.pass != flashkit.PassForward || s.takes&flashkit.FeaturePage == 0 || s.refuses(&b.dev, nil) != none {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			rows := 20
			if s.rows > 0 {
				rows = 1
			}
			sizes := 0
			for page := 1; page <= mostPage; page++ {
				p := flashkit.Problem{Batch: 2, Heads: 4, KVHeads: 2, QLen: rows, KVLen: 600, Dim: 64, VDim: 64, DType: s.dtypes[0], Ragged: true, Page: page}
				if page > 32 && page%8 > 0 && page%7 > 0 { // a sample of the large ones: each needs memory for two calls
					continue
				}
				if s.fits(&b.dev, p) {
					comparePages(t, b, "cuda/"+s.name, p)
					sizes++
				}
			}
			require.NotZero(t, sizes)
		})
	}
}

// The computation of a key's page is right for every size, by the fake's arithmetic.
func TestPageSizes(t *testing.T) {
	slow.UnderRace(t)
	b, _ := openFake(t)
	for page := 1; page <= mostPage; page++ {
		for _, kernel := range []string{"cuda/fwd_f32", "cuda/decode_sm80"} {
			comparePages(t, b, kernel, flashkit.Problem{Batch: 2, Heads: 2, KVHeads: 1, QLen: 1, KVLen: 300, Dim: 8, VDim: 8, DType: flashkit.Float32, Ragged: true, Page: page})
		}
	}
}

// comparePages compares O with keys in pages and with contiguous keys.
func comparePages(t *testing.T, b *Backend, kernel string, p flashkit.Problem) {
	t.Helper()
	c := newDeviceCall(t, b, p.String())
	defer c.close(t)
	q := p
	q.Page = 0
	d := newDeviceCall(t, b, q.String())
	defer d.close(t)
	lens := []int32{int32(p.KVLen) - 3, int32(p.KVLen) / 2}
	table := c.args.Seqs.Pages
	rand.Shuffle(len(table), func(i, j int) { table[i], table[j] = table[j], table[i] })
	c.args.Seqs.KVLens, d.args.Seqs.KVLens = lens, lens
	d.args.Q = c.args.Q
	for _, x := range []struct{ pool, dense flashkit.Tensor }{{c.args.K, d.args.K}, {c.args.V, d.args.V}} {
		from, to, width := c.toHost(t, x.pool), c.toHost(t, x.dense), len(table)/p.Batch
		row := p.Dim * p.DType.Size()
		for i := range p.Batch * p.KVHeads * p.KVLen {
			seq, head, key := i/p.KVLen/p.KVHeads, i/p.KVLen%p.KVHeads, i%p.KVLen
			page := int(table[seq*width+key/p.Page])
			copy(hostmem.Bytes(&to)[i*row:][:row], hostmem.Bytes(&from)[((page*p.KVHeads+head)*p.Page+key%p.Page)*row:])
		}
		require.NoError(t, UploadTensor(d.s, buffer(x.dense), to))
		require.NoError(t, d.s.Sync())
	}
	c.fwdOptions.Kernel, d.fwdOptions.Kernel = kernel, kernel
	require.NoError(t, c.forward())
	require.NoError(t, d.forward())
	delta := 1e-5
	if p.DType != flashkit.Float32 {
		delta = 1. / 256
	}
	want, name := d.download(t, d.args.O), fmt.Sprintf("%s, pages of %d", kernel, p.Page)
	for i, got := range c.download(t, c.args.O) {
		if !(float64(max(got-want[i], want[i]-got)) <= delta) {
			require.FailNow(t, name, "element %d: %v, not %v", i, got, want[i])
		}
	}
}
