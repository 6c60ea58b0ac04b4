package philox

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The words equal known answers of Random123, the library of the authors of Philox, for seven
// rounds.
func TestWords(t *testing.T) {
	const ones = 0xffffffff
	for _, x := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}},
		{[4]uint32{ones, ones, ones, ones}, [2]uint32{ones, ones}, [4]uint32{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0}, [4]uint32{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}},
	} {
		require.Equal(t, x.want, Words(x.counter, x.key))
	}
}

// Limits are rounded to multiples of 2^-16 and never drop everything. Keep compensates for the limit,
// not for p.
func TestLimits(t *testing.T) {
	for _, x := range []struct {
		p     float32
		below uint32
		keep  float32
	}{
		{0, 0, 1},
		{0x.7fp-16, 0, 1},
		{0x.8p-16, 1 << 16, 65536. / 65535},
		{.5, 1 << 31, 2},
		{.1, 6554 << 16, 65536. / (65536 - 6554)},
		{0x.ffff7fp0, 0xffff << 16, 65536},
		{0x.ffffffp0, 0xffff << 16, 65536},
	} {
		require.Equal(t, x.below, Below(x.p), x.p)
		require.Equal(t, x.keep, Keep(x.p), x.p)
	}
}

// The first four of eight elements have the lower halves of the words, the last four the upper
// halves. An element whose number equals the limit is kept.
func TestDropped(t *testing.T) {
	words := [4]uint32{0x00050001, 0x00060002, 0x00070003, 0x00080004}
	for e := range 16 {
		for limit := range uint32(10) {
			require.Equal(t, uint32(e%8+1) < limit, Dropped(words, e, limit<<16), "%d %d", e, limit)
		}
	}
}

// The share of dropped elements is close to p.
func TestShare(t *testing.T) {
	dropped := 0
	for i := range uint32(5000) {
		words := Words([4]uint32{i, 1, 2, 3}, Key(0x123456789abcdef0))
		for e := range 8 {
			if Dropped(words, e, Below(.3)) {
				dropped++
			}
		}
	}
	require.InDelta(t, 12000, dropped, 4*92) // four standard deviations
}
