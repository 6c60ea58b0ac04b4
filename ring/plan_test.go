package ring_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/ring"
)

func predict(t *testing.T, name string, ranks int, pass flashkit.Pass, link string) ring.Plan {
	p, err := flashkit.ParseProblem(name)
	require.NoError(t, err)
	l, err := ring.LinkOf(link)
	require.NoError(t, err)
	x, err := ring.Predict(p, nil, ranks, pass, ring.Machine{FLOPs: 6e14, Overhead: 10 * time.Microsecond}, l)
	require.NoError(t, err)
	return x
}

func TestPlan(t *testing.T) {
	const long = "b1-h32-g8-n131072-m131072-d128-bf16-causal"
	one := predict(t, long, 1, flashkit.PassForward, "nvlink4")
	require.InDelta(t, 1, one.Efficiency, 1e-6)
	require.Zero(t, one.Sent)
	two := predict(t, long, 2, flashkit.PassForward, "nvlink4")
	require.Greater(t, two.Efficiency, .95)
	require.Equal(t, 1.0, two.Hidden)
	require.LessOrEqual(t, two.Sent, int64(65536*8*256*2), "a shard of keys at most")
	slow := predict(t, long, 64, flashkit.PassForward, "ethernet10")
	require.Less(t, slow.Efficiency, .5)
	require.Less(t, slow.Hidden, .8)
	both := predict(t, long, 2, flashkit.PassBackward, "nvlink4")
	require.Greater(t, both.Total, two.Total)
	require.Greater(t, both.Sent, two.Sent)
	short := predict(t, "b1-h32-g8-n2048-m2048-d128-bf16-causal", 2, flashkit.PassForward, "nvlink4")
	require.Less(t, short.Efficiency, two.Efficiency)
	many := predict(t, "b1-h32-g8-n1048576-m1048576-d128-bf16-causal", 1024, flashkit.PassForward, "infiniband")
	require.Equal(t, 1024, many.Ranks)
	require.Less(t, many.Efficiency, 1.0)
}

func TestPlanRefuses(t *testing.T) {
	p, err := flashkit.ParseProblem("b1-h2-g1-n4-m4-d8-f32")
	require.NoError(t, err)
	_, err = ring.LinkOf("string")
	require.ErrorContains(t, err, "nvlink4")
	for _, x := range []struct {
		size int
		pass flashkit.Pass
		m    ring.Machine
		l    ring.Link
	}{
		{0, flashkit.PassForward, ring.Machine{FLOPs: 1}, ring.Link{Rate: 1e9}},
		{math.MaxInt, flashkit.PassForward, ring.Machine{FLOPs: 1}, ring.Link{Rate: 1e9}},
		{2, 7, ring.Machine{FLOPs: 1}, ring.Link{Rate: 1e9}},
		{2, flashkit.PassForward, ring.Machine{}, ring.Link{Rate: 1e9}},
		{2, flashkit.PassForward, ring.Machine{FLOPs: 1}, ring.Link{}},
	} {
		_, err := ring.Predict(p, nil, x.size, x.pass, x.m, x.l)
		require.Error(t, err)
	}
}

func TestLaunched(t *testing.T) {
	read := func(env map[string]string) (ring.Launch, error) {
		return ring.Launched(func(name string) string { return env[name] })
	}
	x, err := read(nil)
	require.NoError(t, err)
	require.Equal(t, ring.Launch{Size: 1, LocalSize: 1}, x)
	x, err = read(map[string]string{"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"})
	require.NoError(t, err)
	require.Equal(t, ring.Launch{Launcher: "MPI", Rank: 3, Size: 4, Local: 1, LocalSize: 2}, x)
	x, err = read(map[string]string{"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"})
	require.NoError(t, err)
	require.Equal(t, ring.Launch{Launcher: "torchrun", Rank: 1, Size: 2, Local: 1, LocalSize: 2, Address: "node0:29500"}, x)
	x, err = read(map[string]string{"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"})
	require.NoError(t, err)
	require.Equal(t, ring.Launch{Launcher: "Slurm", Rank: 5, Size: 8, Local: 1}, x)
	for _, env := range []map[string]string{
		{"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "x", "WORLD_SIZE": "2"}, {"RANK": "0", "WORLD_SIZE": "-1"}, {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "y"},
	} {
		_, err := read(env)
		require.Error(t, err, "%v", env)
	}
}
