package philox

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The known answers of the authors' library, Random123.
func TestWords(t *testing.T) {
	const ones = 0xffffffff
	for _, x := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{ones, ones, ones, ones}, [2]uint32{ones, ones}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0}, [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		require.Equal(t, x.want, Words(x.counter, x.key))
	}
}

// Words spread evenly: a share of p lies below the limit of p.
func TestBelow(t *testing.T) {
	require.Equal(t, uint32(0), Below(0))
	require.Equal(t, uint32(1<<31), Below(.5))
	require.Equal(t, uint32(0xffffff00), Below(0x.ffffffp0))
	dropped := 0
	for i := range uint32(10000) {
		for _, w := range Words([4]uint32{i, 1, 2, 3}, Key(0x123456789abcdef0)) {
			if w < Below(.3) {
				dropped++
			}
		}
	}
	require.InDelta(t, 12000, dropped, 4*92) // four standard deviations
}
