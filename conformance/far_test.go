package conformance_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance"
)

// verdicts returns the changed kernel's failures and its number of passed cases, among the cases of
// a pattern.
func verdicts(t *testing.T, k flashkit.Kernel, change func(k *flashkit.Kernel), cases string) (failed []error, passed int) {
	t.Helper()
	change(&k)
	for r := range conformance.Results(t.Context(), []flashkit.Kernel{k}, conformance.Options{Case: cases}) {
		switch {
		case r.Err == nil:
			passed++
		case !r.Unsupported():
			failed = append(failed, r.Err)
		}
	}
	return failed, passed
}

// wrapped returns a copy of a tensor whose rows are found by offsets of 32 bits.
func wrapped(t flashkit.Tensor) flashkit.Tensor {
	s := t.Shape()
	var x []float32
	for b := range s[0] {
		for h := range s[1] {
			for r := range s[2] {
				x = append(x, t.Float32s()[uint32(t.Offset(b, h, r)):][:s[3]]...)
			}
		}
	}
	return flashkit.F32(x, s[0], s[1], s[2], s[3])
}

func TestOffsetsOf32Bits(t *testing.T) {
	for _, name := range []string{"far_rows", "far_heads", "far_pages"} {
		for _, k := range newMutant(t, "").Kernels() {
			k.DTypes = k.DTypes[:1]
			failed, passed := verdicts(t, k, func(*flashkit.Kernel) {}, name)
			require.Empty(t, failed)
			if passed == 0 {
				t.Logf("%s: no sparse mapping here, or no pages in the pass", k.Name)
				continue
			}
			failed, _ = verdicts(t, k, func(k *flashkit.Kernel) {
				run := k.Run
				k.Run = func(ctx context.Context, c *flashkit.Call) error {
					args := *c.Args
					args.V = wrapped(args.V)
					c.Args = &args
					return run(ctx, c)
				}
			}, name)
			require.Len(t, failed, 1, "%s %s", k.Name, name)
		}
	}
}

func TestCanceledInside(t *testing.T) {
	k := newMutant(t, "").Kernels()[0]
	failed, passed := verdicts(t, k, func(*flashkit.Kernel) {}, "canceled_inside")
	require.Empty(t, failed)
	require.Equal(t, 1, passed)
	failed, _ = verdicts(t, k, func(k *flashkit.Kernel) {
		run := k.Run
		k.Refuses = func(c *flashkit.Call) string { // more would take long
			if c.KVLen > 1<<15 {
				return "too many keys"
			}
			return ""
		}
		k.Run = func(ctx context.Context, c *flashkit.Call) error {
			done := ctx.Done() // the while until it is canceled begins here, however slow the machine is
			if err := run(context.WithoutCancel(ctx), c); err != nil {
				return err
			}
			select { // so that no call is over before it is canceled
			case <-done:
			case <-time.After(50 * time.Millisecond):
			}
			return ctx.Err()
		}
	}, "canceled_inside")
	require.Len(t, failed, 1)
	require.ErrorContains(t, failed[0], "went on to its end after its context was canceled")
}
