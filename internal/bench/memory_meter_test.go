package bench

import (
	"context"
	"errors"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// A kernel's device workspace counts, its device tensors do not.
func TestMemoryOfADevice(t *testing.T) {
	p, err := flashkit.ParseProblem("b1-h2-g1-n100-m90-d16-f32")
	require.NoError(t, err)
	f := MemoryMeter{Formula: true}
	l, err := f.Measure(t.Context(), p, flashkit.Kernel{Name: "gpu/fwd_fast",
		Cost:  func(*flashkit.Call) time.Duration { return 0 },
		Needs: func(*flashkit.Call) flashkit.Memory { return flashkit.Memory{Tensors: 5000, Device: 700} },
		Run:   func(context.Context, *flashkit.Call) error { return nil }})
	require.NoError(t, err)
	table := NewMemoryTable(p, flashkit.PassForward)
	table.Add(l)
	require.Equal(t, big.NewInt(2*100*4+700), l.Bytes)
	require.Equal(t, "LSE + 700 B of the device, besides 4.9 KiB of tensors there", l.from())
}

// A call beyond the time limit is not measured. A kernel that fails is an error.
func TestMemoryLimit(t *testing.T) {
	p, err := flashkit.ParseProblem("b1-h2-g1-n70-m90-d16-f32")
	require.NoError(t, err)
	f := MemoryMeter{Limit: 20 * time.Millisecond}
	slow := flashkit.Kernel{Name: "mine/fwd_slow",
		Cost: func(*flashkit.Call) time.Duration { return 0 },
		Run: func(ctx context.Context, _ *flashkit.Call) error {
			<-ctx.Done()
			return ctx.Err()
		}}
	l, err := f.Measure(t.Context(), p, slow)
	require.NoError(t, err)
	require.Equal(t, "took longer than 20ms", l.Unmeasured)

	broken := slow
	broken.Run = func(context.Context, *flashkit.Call) error { return errors.New("no luck") }
	_, err = f.Measure(t.Context(), p, broken)
	require.ErrorContains(t, err, "mine/fwd_slow: no luck")
}
