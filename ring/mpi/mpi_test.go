package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/ringtest"
	"github.com/flashkit-go/flashkit/ring"
	"github.com/flashkit-go/flashkit/ring/mpi"
)

// rankVar names the rank program for tests that run this binary under mpiexec.
const rankVar = "FLASHKIT_RANK_OF"

func TestMain(m *testing.M) {
	if name := os.Getenv(rankVar); name != "" {
		os.Exit(rank(name))
	}
	os.Exit(m.Run())
}

// rank runs the named program of one rank and returns its exit status.
func rank(name string) int {
	if status, watched := mpi.Watch(os.Stderr); watched {
		return status
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if name == "late" {
		ctx, cancel = context.WithTimeout(ctx, time.Second)
		defer cancel()
	}
	g, err := mpi.Open(ctx)
	if err == nil {
		err = ranks[name](g)
	}
	if err == nil {
		err = g.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

var ranks = map[string]func(g *mpi.Group) error{
	"problems": problems,
	"end": func(g *mpi.Group) error {
		return ring.Group(g).Gather(context.Background(), []byte{1}, make([]byte, g.Size()))
	},
	"killed": func(g *mpi.Group) error { return misbehave(g, func() { kill() }) },
	"exits":  func(g *mpi.Group) error { return misbehave(g, func() { os.Exit(3) }) },
	"hangs":  func(g *mpi.Group) error { return misbehave(g, func() { time.Sleep(time.Hour) }) },
	"fails":  func(g *mpi.Group) error { return misbehave(g, nil) },
	"late": func(g *mpi.Group) error { // to the end
		if g.Rank() == 1 {
			time.Sleep(time.Hour)
		}
		return nil
	},
	"differs": differs,
	"misuse":  misuse,
}

func kill() {
	p, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = p.Kill()
	}
	panic(err)
}

// mpiexec runs n ranks of the named program and returns their output.
func mpiexec(t *testing.T, n int, name string, env ...string) (string, error) {
	path := os.Getenv("FLASHKIT_MPIEXEC")
	if path == "" {
		t.Skip("FLASHKIT_MPIEXEC names no mpiexec: make ring sets it")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, path, "-n", strconv.Itoa(n), os.Args[0])
	c.Env = append(os.Environ(), append(env, rankVar+"="+name, "GOMAXPROCS=1")...)
	out, err := c.CombinedOutput()
	require.NoError(t, ctx.Err(), "%s", out)
	return string(out), err
}

func TestProblems(t *testing.T) {
	seed := os.Getenv("FLASHKIT_SEED")
	if seed == "" {
		seed = strconv.FormatInt(time.Now().UnixNano(), 10)
	}
	for _, n := range []int{1, 2, 3, 4, 5, 8} {
		out, err := mpiexec(t, n, "problems", "FLASHKIT_SEED="+seed)
		require.NoError(t, err, "%d ranks, FLASHKIT_SEED=%s\n%s", n, seed, out)
		require.Contains(t, out, "80 problems")
	}
}

func problems(g *mpi.Group) error {
	seed, err := strconv.ParseUint(os.Getenv("FLASHKIT_SEED"), 10, 64)
	if err != nil {
		return err
	}
	d := dispatch.New(simd.New())
	defer d.Close()
	d = d.Frozen()
	const n = 80
	for i := range uint64(n) {
		c, err := ringtest.New(context.Background(), seed, i, d)
		if err != nil {
			return err
		}
		for _, ordered := range []bool{false, true} {
			if err := c.Check(context.Background(), g, d, ordered); err != nil {
				return fmt.Errorf("case %d: %w", i, err)
			}
		}
	}
	if g.Rank() == 0 {
		fmt.Println(n, "problems")
	}
	return nil
}

// patience is the deadline for a rank that hangs.
const patience = 3 * time.Second

// misbehave computes a pass in which rank 1 may misbehave.
func misbehave(g *mpi.Group, how func()) error {
	p, err := flashkit.ParseProblem("b1-h2-g1-n400-m400-d16-f32")
	if err != nil {
		return err
	}
	cut, err := ring.NewCut(p, nil, g.Size(), false)
	if err != nil {
		return err
	}
	shard, err := cut.Shard(g.Rank(), flashkit.NewArgs(p, flashkit.PassForward))
	if err != nil {
		return err
	}
	run := runner(func(int) error { return nil })
	if g.Rank() == 1 {
		run = func(int) error {
			if how == nil {
				return errors.New("the kernel failed")
			}
			fmt.Println("now", time.Now().UnixMilli())
			how()
			return nil
		}
	}
	r, err := ring.New(g, &counting{run: run}, ring.Options{})
	if err != nil {
		return err
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if g.Rank() == 1 {
		ctx = context.Background()
	}
	return r.Forward(ctx, p, shard)
}

type runner func(call int) error

// counting counts its calls and computes nothing.
type counting struct {
	run   runner
	calls int
}

func (c *counting) Forward(context.Context, flashkit.Problem, *flashkit.Args) error {
	c.calls++
	return c.run(c.calls)
}

func (c *counting) Backward(ctx context.Context, p flashkit.Problem, args *flashkit.Args) error {
	return c.Forward(ctx, p, args)
}

// A rank that dies or gives up ends the job at once, with its number. A rank that hangs ends it at
// the deadline.
func TestFaults(t *testing.T) {
	for name, says := range map[string]string{"killed": "signal: killed", "exits": "exit status 3", "fails": "rank 1: the kernel failed", "hangs": "deadline exceeded", "late": "waits for others to end"} {
		t.Run(name, func(t *testing.T) {
			out, err := mpiexec(t, 3, name)
			ended := time.Now().UnixMilli()
			var status *exec.ExitError
			require.ErrorAs(t, err, &status, "%s", out)
			require.Contains(t, out, says)
			if name == "killed" || name == "exits" {
				require.Contains(t, out, "rank 1 of 3, process")
			}
			if _, now, ok := strings.Cut(out, "now "); ok {
				at, err := strconv.ParseInt(strings.Fields(now)[0], 10, 64)
				require.NoError(t, err)
				t.Logf("the job ended after %d ms", ended-at)
				if name == "hangs" {
					at += patience.Milliseconds()
				}
				require.Less(t, ended-at, int64(2000), "ms to the end of the job")
			}
		})
	}
}

// A normal end kills no process.
func TestEnds(t *testing.T) {
	for range 50 {
		out, err := mpiexec(t, 8, "end")
		require.NoError(t, err, "%s", out)
		require.NotContains(t, out, "TERMINATION")
	}
}

// A differing problem is an error on all ranks, and the group stays usable.
func TestDisagreement(t *testing.T) {
	out, err := mpiexec(t, 3, "differs")
	require.NoError(t, err, "%s", out)
}

func differs(g *mpi.Group) error {
	name := "b1-h2-g1-n0-m0-d16-f32"
	if g.Rank() == 2 {
		name += "-causal"
	}
	p, err := flashkit.ParseProblem(name)
	if err != nil {
		return err
	}
	r, err := ring.New(g, &counting{run: func(int) error { return nil }}, ring.Options{})
	if err != nil {
		return err
	}
	defer r.Close()
	var of *ring.RankError
	if err := r.Forward(context.Background(), p, flashkit.NewArgs(p, flashkit.PassForward)); !errors.As(err, &of) || of.Rank != 2 {
		return fmt.Errorf("rank 2 is not named: %w", err)
	}
	p, _ = flashkit.ParseProblem("b1-h2-g1-n0-m0-d16-f32")
	return r.Forward(context.Background(), p, flashkit.NewArgs(p, flashkit.PassForward))
}

func TestMisuse(t *testing.T) {
	out, err := mpiexec(t, 2, "misuse")
	require.NoError(t, err, "%s", out)
}

// misuse returns nil if each misuse is an error.
func misuse(g *mpi.Group) error {
	_, again := mpi.Open(context.Background())
	x := flashkit.F32(make([]float32, 4), 1, 1, 1, 4)
	for i, err := range []error{
		again,
		g.Gather(context.Background(), []byte{1}, nil),
		g.Start(context.Background(), []ring.Message{{Peer: 2, Tensors: []flashkit.Tensor{x}}}, nil),
	} {
		if err == nil {
			return fmt.Errorf("misuse %d is no error", i)
		}
	}
	// A Go panic is still recoverable.
	defer func() { recover() }()
	var nothing *int
	*nothing = 1
	return errors.New("no panic")
}

// Without a library, or with another ABI, Open returns an error.
func TestNoMPI(t *testing.T) {
	t.Setenv("FLASHKIT_MPI", "/nowhere/libmpi_abi.so.1")
	_, err := mpi.Open(context.Background())
	require.ErrorIs(t, err, mpi.ErrNoMPI)
	require.ErrorIs(t, err, flashkit.ErrUnavailable)
	t.Setenv("FLASHKIT_MPI", "libc.so.6")
	_, err = mpi.Open(context.Background())
	require.ErrorIs(t, err, mpi.ErrNoMPI)
}

// A launcher's variables claim two processes, but no mpiexec started this one.
func TestAlone(t *testing.T) {
	if os.Getenv("FLASHKIT_MPI") == "" {
		t.Skip("FLASHKIT_MPI names no library: make ring sets it")
	}
	c := exec.CommandContext(t.Context(), os.Args[0])
	c.Env = append(os.Environ(), rankVar+"=end", "RANK=1", "WORLD_SIZE=2")
	out, err := c.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "torchrun started 2 processes, but MPI has 1 rank")
}
