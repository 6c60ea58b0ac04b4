package dispatch

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
)

var decoding = flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 2, QLen: 1, KVLen: 500, Dim: 64, VDim: 64, DType: flashkit.BFloat16}

// taught returns a dispatcher over the CPU with figures of two kernels.
func taught(t *testing.T) *Dispatcher {
	d := New(simd.New()).Blank()
	t.Cleanup(func() { d.Close() })
	for i, name := range []string{"simd/fwd_generic", "simd/bwd_generic"} {
		require.NoError(t, d.Learn(name, decoding, time.Duration(i+1)*time.Second))
	}
	return d
}

func costs(d *Dispatcher, p flashkit.Problem) (list []time.Duration) {
	for _, k := range d.Kernels() {
		if k.Fits(p.Ask(k.Pass)) == "" {
			list = append(list, k.Cost(p.Ask(k.Pass)))
		}
	}
	return list
}

func TestProfileKeepsWhatIsKnown(t *testing.T) {
	d := taught(t)
	path := filepath.Join(t.TempDir(), "new", "folder", "profile")
	require.NoError(t, d.SaveProfile(path))
	other := New(simd.New()).Blank()
	defer other.Close()
	require.NotEqual(t, costs(d, decoding), costs(other, decoding))
	require.NoError(t, other.LoadProfile(path))
	for i, c := range costs(d, decoding) {
		require.InEpsilon(t, c, costs(other, decoding)[i], .01)
	}
	verdicts, err := other.Explain(decoding, flashkit.PassBackward)
	require.NoError(t, err)
	last := map[string]time.Duration{}
	for _, v := range verdicts {
		last[v.Name] = v.Last
	}
	require.Equal(t, 2*time.Second, last["simd/bwd_generic"])

	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, left, 1, "no temporary file stays")
}

// Programs with the same profile make the same choices.
func TestFrozenProfileChoosesTheSame(t *testing.T) {
	path := filepath.Join(t.TempDir(), "profile")
	require.NoError(t, taught(t).SaveProfile(path))
	var problems []flashkit.Problem
	for _, n := range []int{1, 2, 7, 16, 33, 100, 900} {
		for _, t := range []flashkit.DType{flashkit.Float32, flashkit.Float16, flashkit.BFloat16} {
			p := decoding
			p.QLen, p.DType = n, t
			problems = append(problems, p)
		}
	}
	var want []string
	for run := range 100 {
		d := New(simd.New())
		require.NoError(t, d.LoadProfile(path))
		d = d.Frozen()
		for i, p := range problems {
			for _, s := range []flashkit.Pass{flashkit.PassForward, flashkit.PassBackward} {
				k, err := d.Pick(p, s)
				require.NoError(t, err)
				if run == 0 {
					want = append(want, k.Name)
				}
				require.Equal(t, want[2*i+int(s)], k.Name, "run %d, %s", run, p)
			}
		}
		require.NoError(t, d.Close())
	}
}

// sealed returns the text of a profile with the right checksum.
func sealed(body string) string {
	sum := sha256.Sum256([]byte(body))
	return profileMagic + hex.EncodeToString(sum[:]) + "\n" + body
}

// A damaged or foreign profile is refused with one error, and changes nothing.
func TestBadProfiles(t *testing.T) {
	d := taught(t)
	path := filepath.Join(t.TempDir(), "profile")
	require.NoError(t, d.SaveProfile(path))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	good := string(text)
	_, body, _ := strings.Cut(good, "\n")
	change := func(edit func(*profile)) string {
		var p profile
		require.NoError(t, json.Unmarshal([]byte(body), &p))
		edit(&p)
		text, err := json.Marshal(p)
		require.NoError(t, err)
		return sealed(string(text))
	}
	for name, text := range map[string]string{
		"empty":       "",
		"text":        "hello\n",
		"no line":     strings.TrimSuffix(profileMagic, " "),
		"older":       strings.Replace(good, "profile 3", "profile 2", 1),
		"flipped":     strings.Replace(good, "generic", "genexic", 1),
		"longer":      good + " ",
		"no JSON":     sealed("{"),
		"wrong JSON":  sealed("[1,2]"),
		"too large":   sealed(strings.Repeat(" ", profileLimit)),
		"cut":         good[:len(good)/2],
		"other cores": change(func(p *profile) { p.Machine.Cores++ }),
		"other CPU":   change(func(p *profile) { p.Machine.CPU += "X" }),
		"other OS":    change(func(p *profile) { p.Machine.OS = "plan9" }),
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		before := costs(d, decoding)
		err := d.LoadProfile(path)
		require.ErrorIs(t, err, ErrProfile, name)
		require.ErrorContains(t, err, path, name)
		require.Equal(t, before, costs(d, decoding), name)
	}
	for n := 0; n < len(good); n += 1 + len(good)/200 {
		require.NoError(t, os.WriteFile(path, []byte(good[:n]), 0o644))
		require.ErrorIs(t, d.LoadProfile(path), ErrProfile, "the first %d bytes", n)
	}
	require.ErrorIs(t, d.LoadProfile(filepath.Dir(path)), ErrProfile, "a folder")
	require.ErrorIs(t, d.LoadProfile(path+".none"), fs.ErrNotExist)
	require.NotErrorIs(t, d.LoadProfile(path+".none"), ErrProfile)
}

// Valid figures without a meaning here are skipped.
func TestStrangeFigures(t *testing.T) {
	d := New(simd.New()).Blank()
	defer d.Close()
	p := d.memory.profile(d.machine)
	regime := regimeOf(decoding, flashkit.PassForward).String()
	predicts := func(kernel string) []int64 {
		for i, k := range d.memory.kernels {
			if k.Name == kernel {
				return d.memory.predicts(i)
			}
		}
		return nil
	}
	p.Kernels["simd/fwd_generic"] = kernelFigure{[]int64{1, 2, 3}, map[string]float64{regime: 5}, map[string]float64{"row-bf16-plain": 5}} // its predictions differ
	p.Kernels["simd/bwd_generic"] = kernelFigure{predicts("simd/bwd_generic"), map[string]float64{
		regime: -1, "x": 1, "": 2, "many-f32-plain-full-own-d64-4^9": 1e300, "many-f32-plain-full-own-d64-4^10": 0}, map[string]float64{"row-bf16-plain": -1, "x": 3}}
	p.Kernels["abacus/fwd_beads"] = kernelFigure{nil, map[string]float64{regime: 5}, nil}
	p.Calls = []lastCall{{"simd/fwd_generic", "b1", 1}, {"simd/fwd_none", decoding.String(), 1}, {"simd/fwd_generic", decoding.String(), -1},
		{"simd/fwd_generic", decoding.String(), math.MaxFloat64}}
	text, err := json.Marshal(p)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "profile")
	require.NoError(t, os.WriteFile(path, []byte(sealed(string(text))), 0o644))
	before := costs(d, decoding)
	require.NoError(t, d.LoadProfile(path))
	require.Equal(t, before, costs(d, decoding))
}

// Several programs write the same profile. A concurrent reader finds one whole profile.
func TestProfileConcurrentWriters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "profile")
	var wait sync.WaitGroup
	for range 4 {
		d := taught(t)
		require.NoError(t, d.SaveProfile(path))
		wait.Go(func() {
			for range 20 {
				if err := errors.Join(d.SaveProfile(path), d.LoadProfile(path)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, left, 1)
}

func TestSaveProfileFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	require.Error(t, taught(t).SaveProfile(filepath.Join(file, "profile")))
	require.Error(t, taught(t).SaveProfile(t.TempDir()), "a folder is in the way")
}

func TestProfilePath(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("where the cache folder lies differs by system")
	}
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv(profileVariable, "")
	d := taught(t)
	path, err := d.ProfilePath()
	require.NoError(t, err)
	folder, err := os.UserCacheDir()
	require.NoError(t, err)
	require.Equal(t, filepath.Join(folder, "flashkit"), filepath.Dir(path))

	other := *d
	other.machine.Devices = map[string]device{"cuda": {"NVIDIA H200", "CUDA 13.0"}}
	there, err := other.ProfilePath()
	require.NoError(t, err)
	require.NotEqual(t, path, there, "another machine, another file")

	t.Setenv(profileVariable, "off")
	_, err = d.ProfilePath()
	require.ErrorIs(t, err, ErrNoProfile)
	t.Setenv(profileVariable, "/some/where")
	path, err = d.ProfilePath()
	require.NoError(t, err)
	require.Equal(t, "/some/where", path)
	t.Setenv(profileVariable, "")
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", "")
	_, err = d.ProfilePath()
	require.Error(t, err)
}

// All reads the profile, and ignores a bad one with one error.
func TestAllReadsTheProfile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "profile")
	t.Setenv(profileVariable, path)
	d := All(t.Context())
	defer d.Close()
	require.NoError(t, d.ProfileErr(), "there is none")
	require.NoError(t, d.Learn("simd/fwd_generic", decoding, time.Second))
	require.NoError(t, d.SaveProfile(path))

	again := All(t.Context())
	defer again.Close()
	require.NoError(t, again.ProfileErr())
	require.InEpsilon(t, costs(d, decoding)[0], costs(again, decoding)[0], .01)

	require.NoError(t, os.WriteFile(path, []byte("nonsense"), 0o644))
	bad, err := Default(t.Context())
	require.NoError(t, err)
	defer bad.Close()
	require.ErrorIs(t, bad.ProfileErr(), ErrProfile)
	_, err = bad.Pick(decoding, flashkit.PassForward)
	require.NoError(t, err)

	t.Setenv(profileVariable, "off")
	off := All(t.Context())
	defer off.Close()
	require.NoError(t, off.ProfileErr())
}

// A profile applies to its own driver and GPU only.
func TestMachines(t *testing.T) {
	h200 := machine{OS: "linux", Arch: "amd64", CPU: "x", Cores: 2, Devices: map[string]device{"cuda": {"H200", "13.0"}}}
	bare := h200
	bare.Devices = nil
	require.True(t, h200.matches(h200))
	require.False(t, h200.matches(bare))
	require.True(t, bare.matches(h200), "what is known of the processor still counts")
	newer := h200
	newer.Devices = map[string]device{"cuda": {"H200", "13.1"}}
	require.False(t, newer.matches(h200))
	require.Empty(t, cpuName("none"))
}

func TestRegimes(t *testing.T) {
	require.Len(t, regimeNames(), regimes, "each has a name of its own")
	for name, want := range map[string]string{
		"b1-h8-g2-n1-m4096-d128-bf16":            "row-bf16-plain-full-shared-d128-4^12",
		"b1-h8-g8-n16-m4096-d256-f16-causal":     "few-f16-plain-masked-own-wide-4^14",
		"b1-h1-g1-n64-m64-d64-f32-window8.0":     "many-f32-plain-masked-own-d64-4^8",
		"b0-h1-g1-n1-m1-d1-f32":                  "row-f32-plain-full-own-d64-4^6",
		"b1-h1-g1-n1000000-m1000000-d64-f32":     "many-f32-plain-full-own-d64-4^20",
		"b1-h8-g8-n16-m4096-d256-f16-softcap30":  "few-f16-extra-full-own-wide-4^14",
		"b1-h8-g8-n1-m4096-d64-f32-ragged":       "row-f32-extra-full-own-d64-4^11",
		"b2-h6-g6-n200-m200-d80-dv40-f32-causal": "many-f32-plain-masked-own-d128-4^12",
	} {
		p, err := flashkit.ParseProblem(name)
		require.NoError(t, err)
		require.Equal(t, want, regimeOf(p, flashkit.PassForward).String(), name)
	}
}

func TestFactor(t *testing.T) {
	var f, g factor
	_, n := f.log()
	require.Zero(t, n)
	for _, x := range []float64{3, 1, 2, 2, 6} {
		f.add(x)
	}
	log, n := f.log()
	require.InDelta(t, 3, log, 1e-6, "of the last four, about")
	require.EqualValues(t, 4, n)
	require.Zero(t, f.excess(&g), "nothing is known of the other one")
	g.set(2.8, 1)
	require.InDelta(t, .2, f.excess(&g), 1e-6)
	g.set(-5, 1)
	require.InDelta(t, math.Ln2, f.excess(&g), 1e-6)
}

func TestNeighbors(t *testing.T) {
	for r := range regime(regimes) {
		smaller, larger := r.neighbors()
		require.Less(t, larger, regime(regimes))
		require.Equal(t, r.kind(), smaller.kind())
		require.Equal(t, r.kind(), larger.kind())
		require.Equal(t, r.String()[:4], larger.String()[:4])
	}
	require.Equal(t, "row-f32-plain", kind(0).String())
	require.Equal(t, "many-bf16-extra", kind(kinds-1).String())
}

func FuzzProfile(f *testing.F) {
	f.Add([]byte(sealed("{}")), true)
	f.Add([]byte(`{"machine":{},"kernels":{"simd/fwd_generic":{"predicts":[1],"rates":{"":[1,2]}}},"calls":[{"kernel":"","problem":"","seconds":1}]}`), true)
	path := filepath.Join(f.TempDir(), "profile")
	d := New(simd.New())
	f.Cleanup(func() { d.Close() })
	f.Fuzz(func(t *testing.T, text []byte, seal bool) {
		if seal {
			var p profile
			if json.Unmarshal(text, &p) == nil {
				p.Machine = d.machine
				text, _ = json.Marshal(p)
			}
			text = []byte(sealed(string(text)))
		}
		require.NoError(t, os.WriteFile(path, text, 0o644))
		if err := d.LoadProfile(path); err != nil {
			require.ErrorIs(t, err, ErrProfile)
		}
		_, err := d.Pick(decoding, flashkit.PassForward)
		require.NoError(t, err)
	})
}

// Problems with slightly more keys, and other lengths in decoding, share a plan. Sharing never
// excludes a kernel that fits.
func TestAlike(t *testing.T) {
	for m := range 5000 {
		p := decoding
		p.KVLen = m
		y := roundKey(denseKey(p, flashkit.PassForward)).Problem
		require.GreaterOrEqual(t, y.KVLen, m)
		require.LessOrEqual(t, 16*(y.KVLen-m), m, m)
		require.Equal(t, y, roundKey(denseKey(y, flashkit.PassForward)).Problem)
		for _, rows := range []int{1, 32, 33, 4096} {
			p.QLen = rows
			s := denseKey(p, flashkit.PassForward)
			s.Traits.Load = 7
			s = roundKey(s)
			require.Equal(t, rows, s.Problem.QLen)
			require.Equal(t, y.KVLen, s.Problem.KVLen)
			require.Equal(t, rows > 32, s.Traits.Load == 7)
		}
	}
	d := New(&fewKeys{simd.New()})
	defer d.Close()
	p := decoding
	p.KVLen = 1000
	for range 2 {
		k, err := d.Pick(p, flashkit.PassForward)
		require.NoError(t, err)
		require.Equal(t, k.Cost(p.Ask(k.Pass)), d.memory.cost(len(d.memory.kernels)-2, p.Ask(k.Pass)), "of the problem itself")
	}
	p.KVLen++
	_, err := d.Pick(p, flashkit.PassForward)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	p.KVLen = math.MaxInt / 4 / 64 / p.KVHeads
	require.NoError(t, p.Validate())
	_, err = d.Pick(p, flashkit.PassForward)
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

// fewKeys has kernels for up to 1000 keys.
type fewKeys struct{ *simd.Backend }

func (b *fewKeys) Kernels() []flashkit.Kernel {
	list := b.Backend.Kernels()
	for i := range list {
		refuses, generic := list[i].Refuses, strings.HasSuffix(list[i].Name, "generic")
		list[i].Refuses = func(c *flashkit.Call) string {
			switch {
			case c.KVLen > 1000 || !generic:
				return "too many keys"
			case refuses == nil:
				return ""
			}
			return refuses(c)
		}
	}
	return list
}
