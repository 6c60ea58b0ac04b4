package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// A remembered choice is not used for tensors that another kernel must read.
func TestChoicesAreOfTraits(t *testing.T) {
	p, err := flashkit.ParseProblem("b4-h16-g16-n2048-m2048-d128-bf16")
	require.NoError(t, err)
	for _, loose := range []bool{false, true} {
		b, _ := openFake(t)
		b.dev.Major, b.dev.Minor = 9, 0
		for _, loose := range []bool{loose, !loose, loose} {
			c := p.Ask(flashkit.PassForward)
			c.Traits = flashkit.Traits{Device: true, Loose: loose}
			id, err := b.choose("", c, false)
			require.NoError(t, err)
			require.Equal(t, !loose, families[id].hopper, families[id].name)
		}
	}
}
