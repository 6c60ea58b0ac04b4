package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/nn"
)

// small are the flags of a model that trains in a second or two.
func small(more ...string) []string {
	return append([]string{"--length=32", "--embedding=32", "--hidden=64", "--layers=2", "--heads=2", "--dim-head=16",
		"--lr=0.004", "--sample=0", "--every=50", "--dropout=0.05"}, more...)
}

func lm(t *testing.T, ctx context.Context, args ...string) (string, error) {
	o, err := parse(args, io.Discard)
	require.NoError(t, err)
	var out bytes.Buffer
	err = run(ctx, &out, o)
	return out.String(), err
}

func losses(t *testing.T, file string) (list []float64) {
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, line := range bytes.Split(bytes.TrimSpace(b), []byte("\n")) {
		if bytes.HasPrefix(line, []byte("#")) {
			continue
		}
		x, err := strconv.ParseFloat(string(line), 64)
		require.NoError(t, err)
		list = append(list, x)
	}
	return list
}

// The model learns more than byte frequencies: after 300 steps the loss is below the unigram
// entropy.
func TestLearns(t *testing.T) {
	dir, steps, below := t.TempDir(), 300, .4
	if testing.Short() {
		steps, below = 150, .1
	}
	out, err := lm(t, t.Context(), small(fmt.Sprintf("--steps=%d", steps), "--sample=200", "--curve="+dir+"/loss.svg", "--losses="+dir+"/losses")...)
	require.NoError(t, err)
	c, err := readCorpus("")
	require.NoError(t, err)
	require.Greater(t, len(c.ids), 300_000)
	all := losses(t, dir+"/losses")
	require.Len(t, all, steps)
	last := 0.0
	for _, x := range all[steps-20:] {
		last += x / 20
	}
	require.Less(t, last, c.entropy()-below)
	require.Regexp(t, regexp.MustCompile(`step (\d+)/\d+  loss \d\.\d{4}  \d+ tokens/s  0s left\nmemory of a step: \d`), out)
	_, text, _ := strings.Cut(out, "besides the parameters\n")
	require.Len(t, text, 200+2, "a sample is at the end")

	image, err := os.ReadFile(dir + "/loss.svg")
	require.NoError(t, err)
	for d := xml.NewDecoder(bytes.NewReader(image)); ; {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
	require.NotContains(t, string(image), "NaN")
}

// An interrupted run resumes to the same bits, whatever the step or the number of workers.
func TestResume(t *testing.T) {
	dir := t.TempDir()
	whole := filepath.Join(dir, "whole")
	_, err := lm(t, t.Context(), small("--steps=12", "--checkpoint="+whole, "--workers=1")...)
	require.NoError(t, err)
	want, err := os.ReadFile(whole)
	require.NoError(t, err)

	parts := filepath.Join(dir, "parts")
	for _, steps := range []string{"0", "5", "12"} {
		_, err := lm(t, t.Context(), small("--steps="+steps, "--checkpoint="+parts, "--save=2")...)
		require.NoError(t, err)
	}
	got, err := os.ReadFile(parts)
	require.NoError(t, err)
	require.Equal(t, want, got)

	canceled := filepath.Join(dir, "canceled")
	for n := range 3 { // each time the context ends amid a step
		ctx := &ending{Context: t.Context(), left: 40 * (n + 1)}
		_, err = lm(t, ctx, small("--steps=12", "--checkpoint="+canceled)...)
		if err != nil {
			require.ErrorIs(t, err, context.Canceled)
		}
	}
	_, err = lm(t, t.Context(), small("--steps=12", "--checkpoint="+canceled)...)
	require.NoError(t, err)
	got, err = os.ReadFile(canceled)
	require.NoError(t, err)
	require.Equal(t, want, got)
	left, err := filepath.Glob(dir + "/*")
	require.NoError(t, err)
	require.Len(t, left, 3, "no file is left behind: %v", left)
}

// An ending context is canceled once it has been asked so often.
type ending struct {
	context.Context
	left int
}

func (c *ending) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// The first losses match PyTorch's in the file of tools/lm_torch.py, with the same weights, batches
// and optimizer, for both kinds of attention.
func TestLossesOfPyTorch(t *testing.T) {
	want := losses(t, "testdata/losses.txt")
	require.Len(t, want, 50)
	for _, flash := range []string{"true", "false"} {
		file := filepath.Join(t.TempDir(), "losses")
		_, err := lm(t, t.Context(), "--steps=50", "--batch=4", "--length=32", "--embedding=64", "--hidden=256", "--layers=2", "--heads=4", "--dim-head=16",
			"--lr=1e-3", "--dropout=0", "--sample=0", "--losses="+file, "--flash="+flash)
		require.NoError(t, err)
		require.InDeltaSlice(t, want, losses(t, file), 1e-4)
	}
}

// Both ways of attention train alike.
func TestFlashOrNot(t *testing.T) {
	dir := t.TempDir()
	_, err := lm(t, t.Context(), small("--steps=20", "--losses="+dir+"/flash")...)
	require.NoError(t, err)
	_, err = lm(t, t.Context(), small("--steps=20", "--losses="+dir+"/plain", "--flash=false")...)
	require.NoError(t, err)
	require.InDeltaSlice(t, losses(t, dir+"/flash"), losses(t, dir+"/plain"), 1e-4)
}

func TestErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "text")
	require.NoError(t, os.WriteFile(file, []byte("too short"), 0o644))
	_, err := lm(t, t.Context(), small("--text="+file)...)
	require.ErrorContains(t, err, "the text has 9 bytes, and a sequence takes 33")
	_, err = lm(t, t.Context(), small("--text="+dir+"/none")...)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = lm(t, t.Context(), small("--heads=0")...)
	require.ErrorContains(t, err, "AttentionConfig.Heads = 0")

	checkpoint := filepath.Join(dir, "checkpoint")
	_, err = lm(t, t.Context(), small("--steps=1", "--checkpoint="+checkpoint)...)
	require.NoError(t, err)
	_, err = lm(t, t.Context(), small("--steps=2", "--checkpoint="+checkpoint, "--seed=2")...)
	require.ErrorContains(t, err, "is of another run")
	text, err := os.ReadFile(checkpoint)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(checkpoint, text[:2000], 0o644))
	_, err = lm(t, t.Context(), small("--checkpoint="+checkpoint)...)
	require.ErrorContains(t, err, "safetensors: ")
	for range 20 {
		damaged := slices.Clone(text)
		data := 8 + int(binary.LittleEndian.Uint64(text))
		damaged[data+rand.IntN(len(text)-data)] ^= 1 << rand.IntN(8)
		require.NoError(t, os.WriteFile(checkpoint, damaged, 0o644))
		_, err = lm(t, t.Context(), small("--checkpoint="+checkpoint)...)
		require.ErrorContains(t, err, checkpoint+" is damaged: ")
	}

	for _, args := range [][]string{{"x"}, {"--steps=-1"}, {"--batch=0"}, {"--temperature=0"}, {"--lr=-1"}, {"--what"}} {
		_, err := parse(args, io.Discard)
		require.Error(t, err, args)
	}
}

// A file of another program is kept, with an error before training. Files of an earlier run are
// replaced.
func TestForeignFilesStay(t *testing.T) {
	for _, flag := range []string{"--checkpoint=", "--losses=", "--curve="} {
		dir := t.TempDir()
		file := filepath.Join(dir, "file")
		for range 2 {
			_, err := lm(t, t.Context(), small("--steps=1", flag+file)...)
			require.NoError(t, err)
		}
		require.NoError(t, os.WriteFile(file, []byte("0.5\n0.25\n"), 0o600))
		_, err := lm(t, t.Context(), small("--steps=1000000", flag+file)...)
		require.ErrorContains(t, err, file+": exists and is not ")
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, "0.5\n0.25\n", string(text))

		require.NoError(t, os.Remove(file))
		require.NoError(t, os.WriteFile(file+".part", []byte("theirs"), 0o600))
		lm(t, t.Context(), small("--steps=1", flag+file)...)
		text, err = os.ReadFile(file + ".part")
		require.NoError(t, err)
		require.Equal(t, "theirs", string(text))
	}
}

// The sample continues after the caches are full. Its first bytes match a model that rereads
// everything for each byte.
func TestSample(t *testing.T) {
	o, err := parse(small("--length=8", "--temperature=0.01"), io.Discard)
	require.NoError(t, err)
	e := engine(t)
	tr, err := newTrainer(e, o)
	require.NoError(t, err)
	got, err := tr.sample(t.Context(), e, 30)
	require.NoError(t, err)
	require.Len(t, got, 30)
	ids := []int32{tr.text.token('\n')}
	s := e.NewStep()
	for k := range 8 {
		s.Begin(t.Context())
		y := tr.model.Forward(s, nn.NewTokens(ids, 1, len(ids)))
		require.NoError(t, s.Err())
		best := int32(0)
		for id, x := range y.Row(k) {
			if x > y.Row(k)[best] {
				best = int32(id)
			}
		}
		ids = append(ids, best)
		require.Equal(t, tr.text.symbols[best], got[k])
	}
}

func engine(t *testing.T) *nn.Engine {
	d := dispatch.New(simd.New()).Frozen()
	t.Cleanup(func() { d.Close() })
	e := nn.NewEngine(d)
	t.Cleanup(e.Close)
	return e
}
