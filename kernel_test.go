package flashkit_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/stretchr/testify/require"
)

func TestKernelCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	late, stop := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer stop()
	for _, newCall := range passes {
		c := newCall(small())
		err := c.run(ctx)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, c.kernel.Name)
		require.ErrorIs(t, c.run(late), context.DeadlineExceeded)
		require.Zero(t, c.calls)
	}
}

func requireUnsupported(t *testing.T, err error, want flashkit.UnsupportedError) {
	t.Helper()
	var got *flashkit.UnsupportedError
	require.ErrorAs(t, err, &got)
	require.Equal(t, want, *got)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.NotErrorIs(t, err, flashkit.ErrUnavailable)
	for _, part := range []string{want.Kernel, want.Problem.String(), want.Reason} {
		require.ErrorContains(t, err, part)
	}
}

func TestKernelUnsupported(t *testing.T) {
	for _, newCall := range passes {
		c := newCall(small())
		c.reason = "a head dim of 6 is not a multiple of 8"
		requireUnsupported(t, c.run(t.Context()), flashkit.UnsupportedError{Kernel: c.kernel.Name, Problem: c.p, Reason: c.reason})
		require.Zero(t, c.calls)

		// An invalid request takes precedence over an unsupported one.
		*c.args[0].t = flashkit.Tensor{}
		requireRefused(t, c, "Q")
	}
}

func TestKernelOfTheOtherPass(t *testing.T) {
	p := small()
	forward, backward := forwardCall(p), backwardCall(p)
	require.Equal(t, flashkit.PassForward, forward.kernel.Pass)
	require.Equal(t, flashkit.PassBackward, backward.kernel.Pass)
	var c flashkit.Call
	require.NoError(t, c.Set(p, flashkit.PassForward, forward.all))
	requireUnsupported(t, backward.kernel.Do(t.Context(), &c), flashkit.UnsupportedError{Kernel: "fake/backward", Problem: p, Reason: "computes the backward pass only"})
	require.NoError(t, c.Set(p, flashkit.PassBackward, backward.all))
	requireUnsupported(t, forward.kernel.Do(t.Context(), &c), flashkit.UnsupportedError{Kernel: "fake/forward", Problem: p, Reason: "computes the forward pass only"})
	require.Zero(t, forward.calls+backward.calls)
}

func TestKernelNilArguments(t *testing.T) {
	c := forwardCall(small())
	requireProblemError(t, c.kernel.Compute(t.Context(), c.p, nil), "Args")
	requireProblemError(t, c.kernel.Do(t.Context(), c.p.Ask(c.kernel.Pass)), "Call")
	require.Zero(t, c.calls)
}

// Unknown passes, missing arguments and a missing owner are errors, too.
func TestNothing(t *testing.T) {
	c := forwardCall(small())
	requireProblemError(t, c.p.Check(2, c.all), "Pass")
	requireProblemError(t, c.p.Check(255, c.all), "Pass")
	requireProblemError(t, flashkit.ProblemOf(nil, flashkit.Causal()).Validate(), "Heads")
	require.Equal(t, new(flashkit.Args), flashkit.NewArgs(c.p, 2))
	require.Equal(t, new(flashkit.Args), flashkit.NewArgs(flashkit.Problem{Batch: -1, Heads: 1, KVHeads: 1, Dim: 1, VDim: 1, Ragged: true}, flashkit.PassForward))
	c.all.Q = flashkit.OnDevice(nil, flashkit.Float32, 4096, c.all.Q.Len(), 2, 4, 3, 8)
	require.Empty(t, c.all.Q.Float32s())
	requireProblemError(t, c.p.Check(flashkit.PassForward, c.all), "Q")
}

func TestKernelFailure(t *testing.T) {
	for _, newCall := range passes {
		c := newCall(small())
		c.failed = io.ErrUnexpectedEOF
		err := c.run(t.Context())
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.ErrorContains(t, err, c.kernel.Name)
		require.NotErrorIs(t, err, errors.ErrUnsupported)
		require.Equal(t, 1, c.calls)
	}
}

// Heads without rows cost nothing, so there may be more of them than a kernel can walk.
func TestKernelWalksNoHeadsWithoutRows(t *testing.T) {
	p := small()
	p.QLen, p.Heads = 0, p.KVHeads*side
	shifted, capped := p, p
	shifted.Band, capped.Score.Softcap = p.Band.Shift(3), 5
	for _, x := range []struct {
		p     flashkit.Problem
		heads int
	}{{p, p.KVHeads}, {shifted, p.KVHeads}, {capped, p.Heads}} { // with features the kernel gets all heads
		c, heads := backwardCall(x.p), 0
		c.kernel.Run = func(_ context.Context, c *flashkit.Call) error {
			heads = c.Heads
			return nil
		}
		require.NoError(t, c.run(t.Context()))
		require.Equal(t, x.heads, heads, "%s", x.p)
	}
}

func TestTensor(t *testing.T) {
	type celsius float32
	type bits uint16
	x := flashkit.F32(make([]celsius, 120), 2, 3, 4, 5)
	require.Equal(t, [4]int{2, 3, 4, 5}, x.Shape())
	require.Equal(t, [4]int{60, 20, 5, 1}, x.Strides())
	require.Equal(t, 60+2*20+3*5, x.Offset(1, 2, 3))
	require.Equal(t, [4]int{60, 5, 15, 1}, x.AsBSHD().Strides())
	require.Equal(t, 60+2*5+3*15, x.AsBSHD().Offset(1, 2, 3))
	require.Len(t, x.Float32s(), 120)
	require.Nil(t, x.Uint16s())

	h := flashkit.BF16(make([]bits, 6), 1, 1, 2, 3)
	require.Equal(t, flashkit.BFloat16, h.DType())
	require.Equal(t, 6, h.Len())
	require.Nil(t, h.Float32s())
	h.Uint16s()[3] = 7 // the memory is the caller's
	require.Equal(t, uint16(7), h.Uint16s()[h.Offset(0, 0, 1)])
	require.Equal(t, flashkit.Float16, flashkit.F16([]bits(nil), 0, 1, 1, 1).DType())

	require.True(t, flashkit.Tensor{}.IsZero())
	require.False(t, flashkit.F32([]float32(nil), 0, 3, 4, 5).IsZero())
	require.False(t, x.IsZero())
}
