package main

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"
)

// A textEncoder turns texts into vectors or scores. *encoder.Encoder implements it.
type textEncoder interface {
	Embed(ctx context.Context, texts []string) ([][]float32, error)
	Score(ctx context.Context, query string, texts []string) ([]float32, error)
	Tokens(text string) int // with special tokens, before truncation
	MaxTokens() int         // longer texts are truncated
	Dim() int
}

// A model is an encoder with its name and its measured times.
type model struct {
	textEncoder
	id      string
	reranks bool
	fixed   float64 // seconds of a call, without its texts
	rows    []row   // by number of tokens
}

// A row is a measurement: a call takes the given seconds for each text of that number of tokens.
type row struct{ tokens, seconds float64 }

// run computes vectors of texts, or scores if the model reranks.
func (m *model) run(ctx context.Context, query string, texts []string) (result, error) {
	if m.reranks {
		scores, err := m.Score(ctx, query, texts)
		return result{scores: scores}, err
	}
	vectors, err := m.Embed(ctx, texts)
	return result{vectors: vectors}, err
}

// newModel measures how long the encoder takes for texts of 8, 32, 128, ... words. It ends at the
// model's limit, or at a call that takes longer than a quarter of a second.
func newModel(ctx context.Context, id string, e textEncoder, reranks bool) (*model, error) {
	const enough, slow, most = 256, time.Second / 4, 8192 // tokens of a call, its time, words of a text
	m := &model{textEncoder: e, id: id, reranks: reranks}
	for words := 8; words <= most; words *= 4 {
		text := strings.Repeat("the ", words)
		whole := m.tokens(text)
		n := m.limit(whole)
		texts := make([]string, max(1, enough/n))
		for i := range texts {
			texts[i] = text
		}
		took, err := m.time(ctx, texts)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", id, err)
		}
		each := took.Seconds() / float64(len(texts))
		if len(m.rows) == 0 {
			one, err := m.time(ctx, texts[:1])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", id, err)
			}
			m.fixed = max(0, one.Seconds()-each)
		}
		m.rows = append(m.rows, row{float64(n), each})
		if took > slow || n < whole {
			break
		}
	}
	return m, nil
}

// time returns the shorter time of two calls.
func (m *model) time(ctx context.Context, texts []string) (time.Duration, error) {
	best := time.Duration(math.MaxInt64)
	for range 2 {
		start := time.Now()
		if _, err := m.run(ctx, "", texts); err != nil {
			return 0, err
		}
		best = min(best, time.Since(start))
	}
	return max(best, time.Microsecond), nil
}

// tokens returns the tokens of a text, at least 1.
func (m *model) tokens(text string) int { return max(1, m.Tokens(text)) }

// limit returns the number of tokens that remain after truncation.
func (m *model) limit(tokens int) int {
	if most := m.MaxTokens(); most > 0 {
		return min(tokens, most)
	}
	return tokens
}

// cost predicts the time that a text of n tokens adds to a call: linear between measurements, and
// after the last one with the slope before it.
func (m *model) cost(n int) time.Duration {
	x, a, b := float64(n), row{}, m.rows[0]
	for _, next := range m.rows[1:] {
		if x <= b.tokens {
			break
		}
		a, b = b, next
	}
	slope := (b.seconds - a.seconds) / max(1, b.tokens-a.tokens)
	seconds := max(a.seconds, b.seconds+(x-b.tokens)*max(slope, 0))
	return time.Duration(min(seconds*float64(time.Second), math.MaxInt64/4))
}
