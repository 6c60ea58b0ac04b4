package cuda

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// An origin is only numbers in the argument block: it changes no instance and no prediction.
func TestOrigin(t *testing.T) {
	b, _ := openFake(t)
	for _, name := range []string{
		"b2-h4-g2-n33-m70-d40-bf16-dropout0.25", "b2-h4-g2-n33-m70-d40-bf16-alibi-dropout0.25", "b2-h4-g2-n33-m70-d40-f32-causal-dropout0.25-ragged", "b1-h4-g2-n1-m70-d64-f16-sink-dropout0.5",
	} {
		p, err := flashkit.ParseProblem(name)
		require.NoError(t, err)
		q := p
		q.Score.Origin = true
		for _, pass := range []flashkit.Pass{flashkit.PassForward, flashkit.PassBackward} {
			for i, k := range b.Kernels() {
				x, y := p.Ask(pass), q.Ask(pass)
				require.Equal(t, k.Fits(x) == "", k.Fits(y) == "", "%s: %s", k.Name, name)
				if k.Fits(x) == "" {
					require.Equal(t, k.Cost(x), k.Cost(y), "%s: %s", k.Name, name)
					require.Equal(t, families[i].specialized(x), families[i].specialized(y), "%s: %s", k.Name, name)
				}
			}
		}
		var f features
		f.fill(&q, &flashkit.Args{Origin: flashkit.Origin{Batch: 1, Head: 2, Row: 3, Key: 8}})
		require.Equal(t, [4]uint32{1, 2, 3, 8}, f.first)
	}
}

// Code that makes random words of the seed adds the origin in the same line.
func TestSeedGoesWithOrigin(t *testing.T) {
	files, err := filepath.Glob("kernels/*.cu*")
	require.NoError(t, err)
	found := 0
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for i, line := range strings.Split(string(text), "\n") {
			if strings.Contains(line, "f.seed") {
				found++
				require.Contains(t, line, "first_batch", "%s:%d", name, i+1)
			}
		}
	}
	require.NotZero(t, found)
}
