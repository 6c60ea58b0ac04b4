package conformance_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance"
	"github.com/flashkit-go/flashkit/conformance/mutants"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// caught returns how the trap fails b, or nil if b survives. No kernel may
// escape by refusing the trap.
func caught(t *testing.T, b flashkit.Backend, trap string) error {
	t.Helper()
	for _, k := range b.Kernels() {
		require.Empty(t, k.Fits(flashkit.Problem{}.Ask(k.Pass)), "%s refuses problems", k.Name)
	}
	return conformance.Caught(t.Context(), b.Kernels(), trap)
}

func newMutant(t *testing.T, mistake string) flashkit.Backend {
	t.Helper()
	b, err := mutants.New(mistake)
	require.NoError(t, err)
	return b
}

func trapNames() []string {
	var names []string
	for _, c := range slices.Concat(conformance.Traps(), conformance.Long()) {
		names = append(names, c.Name)
	}
	return names
}

// TestCorrectKernelPasses is the other half of every claim below: traps catch the
// mistake, not the kernel that makes it.
func TestCorrectKernelPasses(t *testing.T) {
	slow.UnderRace(t)
	o := conformance.Options{Sweep: 20, Seed: 1}
	if testing.Short() {
		o.Sweep, o.Brief = 4, true
	}
	kernels := newMutant(t, "").Kernels()
	for _, k := range kernels {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			o, ran := o, 0
			o.Kernel = k.Name
			for r := range conformance.Results(t.Context(), kernels, o) {
				require.NoError(t, r.Err, "%s %s", r.Kernel, r.Case)
				ran++
			}
			require.Equal(t, o.Count(kernels), ran)
			t.Logf("%d cases passed", ran)
		})
	}
}

func TestThereIsOneMutantForEachTrap(t *testing.T) {
	require.Equal(t, trapNames(), mutants.Names())
	_, err := mutants.New("no_such_mistake")
	require.Error(t, err)
}

func TestEveryMutantIsCaught(t *testing.T) {
	for _, trap := range trapNames() {
		t.Run(trap, func(t *testing.T) {
			t.Parallel()
			b := newMutant(t, trap)
			err := caught(t, b, trap)
			require.Error(t, err, "the mutant survives its trap")
			t.Log(err)
			if !testing.Verbose() {
				return
			}
			others := 0
			for _, other := range trapNames() {
				if other != trap && caught(t, b, other) != nil {
					others++
				}
			}
			t.Logf("%d other traps catch it too", others)
		})
	}
}

// TestSurvivorsAreSeen holds TestEveryMutantIsCaught to account: a kernel
// without a mistake is caught by no trap.
func TestSurvivorsAreSeen(t *testing.T) {
	require.NoError(t, caught(t, newMutant(t, "gqa_2"), "no_such_trap"))
	for i, trap := range conformance.Traps() { // TestCorrectKernelPasses has the long cases
		if testing.Short() && i%4 != 0 {
			continue
		}
		require.NoError(t, caught(t, newMutant(t, ""), trap.Name), trap.Name)
	}
}
