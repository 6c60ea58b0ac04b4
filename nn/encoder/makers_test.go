package encoder_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/nn/encoder"
)

// A folderCase is the file that tools/encoder_folders.py writes next to a folder.
type folderCase struct {
	Kind, Must string
	Words      []string // in the error of a folder that must be refused
	Query      string
	Texts      []string
	Settings   struct {
		Prompt    string
		MaxTokens int `json:"max_tokens"`
	}
	Values [][]float64   // a row for each text: a vector, a score, or scores by label
	Tags   [][][]float64 // for each text and token, scores by label
	Labels []string
	Makers string // why the makers' software refuses the folder
}

// Folders as makers write them give the vectors of the makers' software, or are refused.
func TestMakers(t *testing.T) {
	root := os.Getenv("FLASHKIT_ENCODER_FOLDERS")
	if root == "" {
		t.Skip("FLASHKIT_ENCODER_FOLDERS names no folder; make verify-encoder makes one")
	}
	files, err := filepath.Glob(filepath.Join(root, "*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	counts := map[string]int{}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			var c folderCase
			require.NoError(t, json.Unmarshal(text, &c))
			verdict, right := c.judge(strings.TrimSuffix(file, ".json"))
			counts[strings.SplitN(verdict, ":", 2)[0]]++
			t.Log(verdict)
			if !right {
				t.Errorf("the folder must be %s", map[string]string{"equal": "equal", "refuse": "refused " + c.Makers, "either": "equal or refused"}[c.Must])
			}
		})
	}
	t.Log(counts)
}

// judge opens a folder and returns a verdict, and whether the verdict is right.
func (c *folderCase) judge(dir string) (verdict string, right bool) {
	defer func() {
		if p := recover(); p != nil {
			verdict, right = fmt.Sprintf("PANIC: %v", p), false
		}
	}()
	got, want, err := c.compute(dir)
	if err != nil {
		message := strings.ReplaceAll(err.Error(), dir, "DIR")
		for _, word := range c.Words {
			if !strings.Contains(strings.ToLower(message), strings.ToLower(word)) {
				return fmt.Sprintf("refused without the words %q: %s", word, message), false
			}
		}
		return "refused: " + message, c.Must != "equal"
	}
	if c.Must == "either" && c.Makers != "" {
		return "accepted, where the makers' software stops: " + c.Makers, true
	}
	if c.Must == "refuse" {
		return "ACCEPTED", false
	}
	apart, cosine := differ(got, want)
	if apart <= 1e-5 && cosine >= 0.999999 {
		return fmt.Sprintf("equal: at most %.2g apart", apart), true
	}
	return fmt.Sprintf("SILENT DIFFERENCE: %.3g apart, cosine %.6f", apart, cosine), false
}

// compute returns the encoder's results and the makers' results.
func (c *folderCase) compute(dir string) (got, want [][]float64, err error) {
	ctx := context.Background()
	e, err := encoder.OpenWith(ctx, dir, encoder.Options{Prompt: c.Settings.Prompt, MaxTokens: c.Settings.MaxTokens})
	if err != nil {
		return nil, nil, err
	}
	defer e.Close()
	out := make([][]float64, len(c.Texts))
	switch c.Kind {
	case "embed":
		vectors, err := e.Embed(ctx, c.Texts)
		for i, v := range vectors {
			for _, x := range v {
				out[i] = append(out[i], float64(x))
			}
		}
		return out, c.Values, err
	case "score":
		scores, err := e.Score(ctx, c.Query, c.Texts)
		for i, x := range scores {
			out[i] = []float64{float64(x)}
		}
		return out, c.Values, err
	case "classify":
		all, err := e.Classify(ctx, c.Texts)
		for i, classes := range all {
			for _, label := range c.Labels {
				for _, class := range classes {
					if class.Label == label {
						out[i] = append(out[i], float64(class.Score))
					}
				}
			}
		}
		return out, c.Values, err
	}
	all, err := e.Tag(ctx, c.Texts)
	want = make([][]float64, len(c.Texts))
	for i, tags := range all {
		for _, tag := range tags {
			out[i] = append(out[i], float64(slices.Index(c.Labels, tag.Label)), float64(tag.Score))
		}
		for _, scores := range c.Tags[i] {
			best := slices.Max(scores)
			want[i] = append(want[i], float64(slices.Index(scores, best)), best)
		}
	}
	return out, want, err
}

// differ returns how far apart values are at most, in units of the greatest if that exceeds 1, and
// the least cosine of two rows. Rows of other lengths are infinitely far apart.
func differ(got, want [][]float64) (apart, cosine float64) {
	size, cosine := 1.0, 1.0
	for i, row := range want {
		if len(got) != len(want) || len(got[i]) != len(row) {
			return math.Inf(1), -1
		}
		var dot, a, b float64
		for j, x := range row {
			y := got[i][j]
			size = max(size, math.Abs(x))
			if d := math.Abs(x - y); !(d <= apart) {
				apart = d
			}
			dot, a, b = dot+x*y, a+x*x, b+y*y
		}
		if len(row) > 1 {
			if c := dot / math.Sqrt(a*b); !(c >= cosine) {
				cosine = c
			}
		}
	}
	return apart / size, cosine
}
