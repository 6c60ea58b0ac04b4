package main

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// problem returns a problem of any features, small, or of lengths that no memory has.
func (m mutator) problem() flashkit.Problem {
	dim := func() int {
		if m.IntN(40) == 0 {
			return []int{e33, e50, e55 + 1, math.MaxInt}[m.IntN(4)]
		}
		return []int{0, 1, 1, 2, 3, 4, 7, 8, 16, 33}[m.IntN(10)]
	}
	p := flashkit.Problem{Batch: dim() % 5, Heads: 2, KVHeads: 1 + m.IntN(2), QLen: dim(), KVLen: dim(), Dim: 1 + dim()%65, VDim: 1 + dim()%65,
		DType: flashkit.DType(m.IntN(3))}
	if m.IntN(4) > 0 {
		p.VDim = p.Dim
	}
	switch m.IntN(6) {
	case 0:
		p.Band = flashkit.Causal()
	case 1:
		p.Band = flashkit.Window(dim(), dim()).TopLeft()
	case 2:
		p.Band = flashkit.Window(flashkit.Unlimited, dim()).Shift(dim() - 7)
	}
	if p.DType == flashkit.Float32 && m.IntN(6) == 0 {
		p.KVDType = flashkit.Float16
	}
	for _, x := range flashkit.Parameters() {
		if m.IntN(4) > 0 {
			continue
		}
		switch v := x.Of(&p).(type) {
		case *bool:
			*v = true
		case *int:
			*v = 1 + dim()
		case *float32:
			*v = []float32{0.5, 0.125, 2, 30, 1e-9, 3e38}[m.IntN(6)]
		}
	}
	return p
}

// damageName returns a name with a few characters or parts changed.
func (m mutator) damageName(name string) string {
	for range 1 + m.IntN(3) {
		at := m.IntN(len(name) + 1)
		parts := strings.Split(name, "-")
		part := &parts[m.IntN(len(parts))]
		switch m.IntN(7) {
		case 0: // a character more
			name = name[:at] + []string{"0", "9", "-", ".", " ", "\n", "\x1b", "é", "\x00", "x", "e5"}[m.IntN(11)] + name[at:]
		case 1: // the end is missing
			name = name[:at]
		case 2: // another number
			name = numberPattern.ReplaceAllString(name, numbers[m.IntN(len(numbers))])
		case 3: // a part twice
			*part += "-" + *part
			name = strings.Join(parts, "-")
		case 4: // another part
			*part = []string{"", "causal", "softcap", "softcap-1", "page0", "windowinf.inf", "kvbf16", "scaleNaN", "dropout1", strings.Repeat("9", 400)}[m.IntN(10)]
			name = strings.Join(parts, "-")
		case 5: // another order
			m.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
			name = strings.Join(parts, "-")
		case 6: // its numbers with the one of a part
			name = strings.Replace(name, *part, *part+numbers[m.IntN(len(numbers))], 1)
		}
		if name == "" {
			return name
		}
	}
	return name
}

// nameCommands are commands with a problem argument. The last ones compute nothing.
var nameCommands = [][]string{
	{"run", "--repeat", "1", "--problem"}, {"run", "--repeat", "1", "--check", "--problem"}, {"run", "--repeat", "1", "--pass", "fwd,bwd", "--check", "--problem"},
	{"run", "--repeat", "1", "--json", "--backend", "wasm", "--problem"}, {"run", "--repeat", "1", "--backend", "simd/fwd_generic", "--layout", "bshd", "--check", "--problem"},
	{"bench", "--limits=false", "--backend", "simd", "--time-per-case", "1us", "--problem"},
	{"explain"}, {"explain", "--pass", "bwd"}, {"memory", "--formula"},
}

const computingCommands = 6

// Any text as a problem name gives one clear error or is computed.
func TestRandomNames(t *testing.T) {
	slow.UnderRace(t)
	const mostFLOPs = 1e8 // larger problems are only explained: computing may take minutes
	m, codes, args := newMutator(t), map[int]int{}, []string(nil)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("at %q", args)
		}
	})
	for range tries() {
		name := m.problem().String()
		if m.IntN(2) == 0 {
			name = m.damageName(name)
		}
		commands := nameCommands
		if p, err := flashkit.ParseProblem(name); err == nil && p.FLOPs(flashkit.PassForward) > mostFLOPs {
			commands = commands[computingCommands:]
		}
		args = append(slices.Clone(commands[m.IntN(len(commands))]), name)
		code, stdout, stderr := flashrun(t, args...)
		codes[code]++
		requireClear(t, code, stdout, stderr)
	}
	require.Greater(t, codes[exitOK], tries()/10)
	require.Greater(t, codes[exitUsage], tries()/10)
	t.Logf("%d names: %d ran, %d refused, %d failed", tries(), codes[exitOK], codes[exitUsage], codes[exitFailed])
}
