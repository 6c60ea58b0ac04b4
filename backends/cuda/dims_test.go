package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// A problem is padded to the first head dims that hold it and whose instances know its features.
func TestPad(t *testing.T) {
	for name, want := range map[string][2]string{ // of fwd_sm90 and bwd_sm90
		"b1-h1-g1-n4-m4-d64-bf16":                    {"d64", "d64"},
		"b1-h1-g1-n4-m4-d8-dv65-bf16":                {"d80", "d128"},
		"b1-h1-g1-n4-m4-d81-bf16":                    {"d96", "d128"},
		"b1-h1-g1-n4-m4-d72-bf16-sink":               {"d128", "d128"},
		"b1-h1-g1-n4-m4-d97-bf16":                    {"d128", "d128"},
		"b1-h1-g1-n4-m4-d192-dv128-bf16":             {"d192_dv128", "d192_dv128"},
		"b1-h1-g1-n4-m4-d129-dv8-bf16-causal-shift1": {"d192_dv128", "d192_dv128"},
		"b1-h1-g1-n4-m4-d160-bf16":                   {"d192", "d192"},
		"b1-h1-g1-n4-m4-d8-dv192-bf16":               {"d192", "d192"},
		"b1-h1-g1-n4-m4-d193-dv8-bf16":               {"d256", "d256"},
		"b1-h1-g1-n4-m4-d192-dv128-bf16-sink-ragged": {"d192_dv128", "d256"},
		"b1-h1-g1-n4-m4-d192-bf16-alibi":             {"d256", "d256"},
	} {
		p := problem(t, name)
		for i, id := range []familyID{fwdSM90, bwdSM90} {
			s := &families[id]
			require.Equal(t, want[i], s.dims[s.pad(p)].name(), "%s of %s", s.name, name)
		}
	}
	s := &families[fwdSM80]
	require.Equal(t, "d96", s.dims[s.pad(problem(t, "b1-h1-g1-n4-m4-d8-dv80-bf16-mask"))].name())
	require.Equal(t, "d320", s.dims[s.pad(problem(t, "b1-h1-g1-n4-m4-d257-bf16"))].name())
	require.Equal(t, "d512", s.dims[s.pad(problem(t, "b1-h1-g1-n4-m4-d8-dv321-bf16"))].name())
	require.Equal(t, len(s.dims), s.pad(problem(t, "b1-h1-g1-n4-m4-d513-bf16")))
}

// Wide heads of bwd_sm80 run with features only, and on GPUs with enough shared memory only. Other
// GPUs refuse them by name.
func TestWideBackward(t *testing.T) {
	s, p := &families[bwdSM80], problem(t, "b1-h1-g1-n4-m4-d257-bf16")
	require.Equal(t, "d512", s.dims[s.pad(p)].name())
	require.Equal(t, traitFeatures, s.instanceOf(&instanceCall{p: &p, whole: &p}))
	narrow := problem(t, "b1-h1-g1-n4-m4-d256-bf16")
	require.Equal(t, instance(0), s.instanceOf(&instanceCall{p: &narrow, whole: &narrow}))
	for arch, reason := range map[int]string{
		80: "", 90: "",
		86:  "supports head dims up to 256 on compute capability 8.6, not 257",
		89:  "supports head dims up to 256 on compute capability 8.9, not 257",
		120: "supports head dims up to 256 on compute capability 12.0, not 257",
	} {
		dev := &Device{Major: arch / 10, Minor: arch % 10}
		require.Equal(t, reason, s.reason(dev, p.Ask(flashkit.PassBackward)), arch)
		require.Empty(t, s.reason(dev, narrow.Ask(flashkit.PassBackward)), arch)
	}
}
