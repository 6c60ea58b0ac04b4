package conformance_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance"
	"github.com/flashkit-go/flashkit/conformance/mutants"
)

// caught runs the trap in every type on both kernels of b and returns the first
// failure, or nil if b survives. A kernel that refuses a trap escapes it.
func caught(t *testing.T, b flashkit.Backend, trap string) error {
	t.Helper()
	ran := 0
	for _, suffix := range []string{"", "-f16", "-bf16"} {
		for r := range conformance.Results(t.Context(), b.Kernels(), conformance.Options{Case: trap + suffix}) {
			require.False(t, r.Unsupported(), "%s refuses %s", r.Kernel, r.Case)
			if r.Err != nil {
				return r.Err
			}
			ran++
		}
	}
	require.Equal(t, 2*3, ran, "%s does not name a case of each type", trap)
	return nil
}

func newMutant(t *testing.T, mistake string) flashkit.Backend {
	t.Helper()
	b, err := mutants.New(mistake)
	require.NoError(t, err)
	return b
}

func trapNames() []string {
	var names []string
	for _, c := range conformance.Traps() {
		names = append(names, c.Name)
	}
	return names
}

// TestCorrectKernelPasses is the other half of every claim below: what is
// caught is the mistake, not the kernel that makes it.
func TestCorrectKernelPasses(t *testing.T) {
	o := conformance.Options{Sweep: 300, Seed: 1}
	if testing.Short() {
		o.Sweep = 10
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
	for _, trap := range trapNames() {
		require.NoError(t, caught(t, newMutant(t, ""), trap), trap)
	}
}
