package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
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
	for _, line := range bytes.Fields(b) {
		x, err := strconv.ParseFloat(string(line), 64)
		require.NoError(t, err)
		list = append(list, x)
	}
	return list
}

// The model learns more than how often each byte occurs: 300 steps bring the loss below what
// any model reaches that knows no more.
func TestLearns(t *testing.T) {
	dir := t.TempDir()
	out, err := lm(t, t.Context(), small("--steps=300", "--sample=200", "--curve="+dir+"/loss.svg", "--losses="+dir+"/losses")...)
	require.NoError(t, err)
	c, err := readCorpus("")
	require.NoError(t, err)
	require.Greater(t, len(c.ids), 300_000)
	all := losses(t, dir+"/losses")
	require.Len(t, all, 300)
	last := 0.0
	for _, x := range all[280:] {
		last += x / 20
	}
	require.Less(t, last, c.entropy()-.4)
	require.Regexp(t, regexp.MustCompile(`step 300/300  loss \d\.\d{4}  \d+ tokens/s  0s left\nmemory of a step: \d`), out)
	require.Greater(t, len(out), 500, "a sample is at the end")

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

// A run that is interrupted goes on to the same bits, wherever it was; so does one with
// another number of workers.
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
	require.NoError(t, os.WriteFile(checkpoint, []byte("no checkpoint"), 0o644))
	_, err = lm(t, t.Context(), small("--checkpoint="+checkpoint)...)
	require.ErrorContains(t, err, "safetensors: ")

	for _, args := range [][]string{{"x"}, {"--steps=-1"}, {"--batch=0"}, {"--temperature=0"}, {"--lr=-1"}, {"--what"}} {
		_, err := parse(args, io.Discard)
		require.Error(t, err, args)
	}
}

// The sample goes on when the caches are full, and its first bytes are those of a model that
// reads everything anew for each byte.
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
