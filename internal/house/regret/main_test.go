package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/replay"
)

// TestMain is also the processes that -live starts.
func TestMain(m *testing.M) {
	if os.Args[0] == "flashrun" {
		main()
		return
	}
	os.Setenv("FLASHKIT_PROFILE", "off")
	os.Exit(m.Run())
}

// regret runs the command and decodes its JSON into r.
func regret(t *testing.T, r any, args ...string) {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, execute(t.Context(), append(args, "-json"), nil, &out, io.Discard))
	d := json.NewDecoder(&out)
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(r))
}

// A problem has a ratio or names the median in doubt. The sums include only problems with a ratio.
func TestRegret(t *testing.T) {
	args := []string{"-problem", "b1-h1-g1-n2-m2-d4-f32", "-problem", "b1-h1-g1-n3-m3-d4-bf16", "-time-per-case", "5ms"}
	var r bench.RegretReport
	regret(t, &r, args...)
	require.Len(t, r.Problems, 4, "both passes")
	worst := 0.
	for _, x := range r.Problems {
		chosen, best := x.Times()
		require.Equal(t, x.Doubt == "", x.Ratio > 0, "%+v", x)
		if x.Doubt == "" {
			require.InEpsilon(t, chosen/best, x.Ratio, 1e-9)
		}
		worst = max(worst, x.Ratio)
		for _, k := range x.Kernels {
			require.True(t, k.Calls > 0 && k.Seconds >= best || k.Note != "", "%+v", k)
			require.True(t, k.Calls >= bench.MinCalls || k.Kernel != x.Chosen && k.Kernel != x.Best, "%+v", k)
		}
	}
	require.Equal(t, worst, r.Worst)
	var out bytes.Buffer
	require.NoError(t, execute(t.Context(), append(args, "-pass", "fwd"), nil, &out, io.Discard))
	require.Regexp(t, "(?m)^[12] problems: dispatch's choices take |^\\? 2 of 2 problems have no ratio", out.String())
}

func TestLive(t *testing.T) {
	if os.Getenv("FLASHKIT_EMULATOR") != "" {
		t.Skip("this program runs in an emulator, which starts no other")
	}
	path := filepath.Join(t.TempDir(), "mine.trace")
	require.NoError(t, os.WriteFile(path, []byte("fwd b1-h2-g1-n5-m9-d8-f32 calls=12"), 0o644))
	var r replay.Report
	regret(t, &r, "-live", "-trace", path, "-trace", path, "-runs", "3")
	require.Len(t, r.Traces, 2)
	for _, x := range r.Traces {
		require.Len(t, x.Runs, 3)
		require.LessOrEqual(t, x.Regret, x.Worst)
		n := 0
		for _, calls := range x.Kernels {
			n += calls
		}
		require.Equal(t, 36, n)
	}
	var out bytes.Buffer
	require.NoError(t, execute(t.Context(), []string{"-live", "-trace", path, "-runs", "1"}, nil, &out, io.Discard))
	require.Regexp(t, `(?m)^trace +kernels that ran +calls +runs +live regret +worst run +raw +worst call +steady$`, out.String())
	require.Contains(t, out.String(), "the geometric mean of live regret is ")

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	out.Reset()
	require.ErrorIs(t, execute(ended, []string{"-live", "-trace", path}, nil, &out, io.Discard), context.Canceled)
}

func TestBadFlags(t *testing.T) {
	for args, want := range map[string]string{
		"x": `argument "x"`, "-random -1": "-random -1", "-random 2 -live": "exclude", "-trace layers": "-live", "-runs 0": "-runs 0",
		"-problem b1": "--problem b1", "-pass both": `-pass "both"`, "-backend tpu": "tpu", "-live -trace none": "none", "-time-per-case 0s": "-time-per-case 0s",
	} {
		err := execute(t.Context(), strings.Fields(args), nil, io.Discard, io.Discard)
		require.ErrorContains(t, err, want, args)
	}
}
