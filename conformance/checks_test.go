package conformance

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// The full name of a check chooses the checks of this name, in every type and layout.
func TestNameChoosesItsChecks(t *testing.T) {
	all := Options{}.checks()
	count := map[string]int{}
	for _, c := range all {
		count[c.name]++
	}
	for range 40 {
		name := all[rand.IntN(len(all))].name
		chosen := Options{Case: name}.checks()
		require.Len(t, chosen, count[name], name)
		for _, c := range chosen {
			require.Equal(t, name, c.name)
		}
	}
}
