//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// growing are decode steps with growing keys, padded and paged, by the kernels that support them.
var growing = []string{"b3-h8-g2-n1-m10240-d128-bf16-ragged", "b3-h8-g2-n1-m10240-d64-f16-sink-ragged-page16", "b2-h4-g4-n1-m3000-d64-f32-ragged-page1"}

// A graph of a step is captured once. For lengths that grow in device memory, it gives the results
// of calls with these lengths.
func TestGraphOfGrowingCache(t *testing.T) {
	b := openGPU(t)
	for _, name := range growing {
		t.Run(name, func(t *testing.T) {
			d := newDeviceCall(t, b, name)
			defer d.close(t)
			layOutPages(d)
			seqs := d.args.Seqs
			if seqs.KVLens == nil {
				seqs.KVLens = make([]int32, d.p.Batch)
			}
			for i := range seqs.KVLens {
				seqs.KVLens[i] = int32(d.p.KVLen)
			}
			require.NoError(t, d.forward()) // loads the kernels
			lens := d.list(t, seqs.KVLens)
			device := &DeviceSequences{KVLens: lens}
			if seqs.Pages != nil {
				device.Pages = d.list(t, seqs.Pages)
			}
			steps := min(10000, d.p.KVLen-d.p.Batch)
			inGraph(t, d, func() {
				d.fwdOptions.Sequences = device
				require.NoError(t, d.forward())
				d.fwdOptions.Sequences = nil
			}, func(launch func()) {
				now := make([]int32, d.p.Batch)
				for step := range steps {
					for i := range now {
						now[i] = int32(step + i)
					}
					require.NoError(t, Upload(d.s, lens, 0, now))
					launch()
					if step%997 > 2 {
						continue
					}
					got, lse := d.download(t, d.args.O), d.download(t, d.args.LSE)
					copy(seqs.KVLens, now)
					require.NoError(t, d.forward())
					require.Equal(t, d.download(t, d.args.O), got, "step %d", step)
					require.Equal(t, d.download(t, d.args.LSE), lse, "step %d", step)
				}
			})
		})
	}
}

// layOutPages permutes the pages of a problem.
func layOutPages(d *deviceCall) {
	for n, i := len(d.args.Seqs.Pages), 0; i < n/2; i += 2 {
		d.args.Seqs.Pages[i], d.args.Seqs.Pages[n-1-i] = d.args.Seqs.Pages[n-1-i], d.args.Seqs.Pages[i]
	}
}

// Errors describe invalid sequences in device memory.
func TestDeviceSequencesErrors(t *testing.T) {
	b, _ := openFake(t)
	d := newDeviceCall(t, b, "b2-h2-g1-n3-m8-d16-f32-ragged-page4")
	defer d.close(t)
	short, err := b.Alloc(4)
	require.NoError(t, err)
	defer short.Free()
	for _, x := range []struct {
		s    DeviceSequences
		want string
	}{
		{DeviceSequences{}, "Options.Sequences.KVLens"},
		{DeviceSequences{KVLens: short}, "Options.Sequences.KVLens"},
		{DeviceSequences{KVLens: short, QLens: short}, "Options.Sequences.QLens"},
	} {
		d.fwdOptions.Sequences = &x.s
		require.ErrorContains(t, d.forward(), x.want)
	}
	d = newDeviceCall(t, b, "b2-h2-g1-n3-m8-d16-f32")
	d.fwdOptions.Sequences = &DeviceSequences{}
	var problem *flashkit.ProblemError
	require.ErrorAs(t, d.forward(), &problem)
	require.Equal(t, "Seqs", problem.Field)
	d.close(t)
}

// A page table and lengths that exist only on the device give the same results as on the host. A
// call without them is refused.
func TestPageTableOfTheDevice(t *testing.T) {
	b, _ := openFake(t)
	if gpu, err := Open(); err == nil {
		b = gpu
		defer gpu.Close()
	}
	d := newDeviceCall(t, b, "b2-h4-g2-n1-m24-d64-bf16-ragged-page4")
	defer d.close(t)
	layOutPages(d)
	require.NoError(t, d.forward())
	o, lse := d.download(t, d.args.O), d.download(t, d.args.LSE)
	lens, table := d.list(t, d.args.Seqs.KVLens), d.list(t, d.args.Seqs.Pages)
	d.args.Seqs = &flashkit.Sequences{PagesPerSeq: 6}
	require.ErrorContains(t, d.forward(), "Options.Sequences.Pages")
	c := new(flashkit.Call)
	require.NoError(t, c.Set(d.p, flashkit.PassForward, &d.args))
	require.ErrorContains(t, b.runDevice(context.Background(), decodeSM80, c), "Options.Sequences.Pages")
	d.fwdOptions.Sequences = &DeviceSequences{KVLens: lens}
	require.ErrorContains(t, d.forward(), "Options.Sequences.Pages")
	d.fwdOptions.Sequences = &DeviceSequences{KVLens: lens, Pages: table}
	for range 2 {
		require.NoError(t, d.forward())
		require.Equal(t, o, d.download(t, d.args.O))
		require.Equal(t, lse, d.download(t, d.args.LSE))
	}
	d.args.Seqs.PagesPerSeq = 7
	require.ErrorContains(t, d.forward(), "is too small")
}

// The same bits from run to run, with features.
func TestFeaturedRepeatsAreBitEqual(t *testing.T) {
	b := openGPU(t)
	for _, name := range []string{
		"b2-h8-g2-n700-m900-d64-bf16-causal-softcap20-alibi-ragged", "b1-h4-g4-n600-m600-d128-f16-bias-mask-sink-dropout0.25", "b2-h4-g4-n700-m900-d192-dv128-bf16-causal-sink-ragged", "b2-h8-g2-n1-m9000-d128-bf16-sink-ragged-page16",
		"b2-h4-g2-n700-m700-d64-bf16-softcap20", "b2-h4-g2-n700-m640-d128-bf16-causal-alibi", "b2-h4-g4-n700-m640-d64-bf16-bias", "b2-h4-g2-n700-m640-d64-f16-mask",
		"b1-h4-g4-n700-m640-d128-bf16-causal-mask", "b2-h4-g4-n700-m640-d64-bf16-dropout0.1", "b2-h4-g4-n700-m640-d256-f16-dropout0.1",
		"b9-h60-g60-n330-m330-d64-bf16-causal-ragged", "b3-h8-g2-n700-m900-d128-bf16-causal-ragged", "b9-h40-g40-n700-m900-d128-f16-sink-ragged",
		"b2-h4-g2-n300-m400-d64-f32-causal-softcap20-alibi-ragged", "b1-h4-g4-n300-m200-d128-f32-bias-mask-sink-dropout0.25",
	} {
		for i := range families {
			s := &families[i]
			p := problem(t, name)
			if s.pass == flashkit.PassBackward && p.Page > 0 || !s.fits(&b.dev, p) {
				continue
			}
			t.Run(name+"/"+s.name, func(t *testing.T) {
				c := newDeviceCall(t, b, name)
				defer c.close(t)
				if c.use("cuda/"+s.name, s.pass); s.pass == flashkit.PassForward {
					sameBits(t, c, []flashkit.Tensor{c.args.O, c.args.LSE}, c.forward)
					return
				}
				outputs := []flashkit.Tensor{c.args.DQ, c.args.DK, c.args.DV}
				for _, x := range []flashkit.Tensor{c.args.DBias, c.args.DSink} {
					if !x.IsZero() {
						outputs = append(outputs, x)
					}
				}
				require.NoError(t, c.forward())
				sameBits(t, c, outputs, c.backward)
			})
		}
	}
}

// list returns device memory with numbers of Sequences, which is freed with the call.
func (c *deviceCall) list(t *testing.T, n []int32) *Buffer {
	m, err := c.s.b.Alloc(4 * len(n))
	require.NoError(t, err)
	c.buffers = append(c.buffers, m)
	require.NoError(t, Upload(c.s, m, 0, n))
	return m
}
