package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/flashkit-go/flashkit/nn/bert"
	"github.com/flashkit-go/flashkit/nn/tokenizer"
)

// longestLine is the maximum length of a line in bytes.
const longestLine = 1 << 20

// batchTexts and batchTokens limit the size of a batch. A large batch lets bert.Step put several
// sequences into a group. With a small batch, the first results are printed sooner.
const (
	batchTexts  = 256
	batchTokens = 8192
)

// source returns two functions: next returns the next text or io.EOF, end closes the input.
func (o *Options) source(in io.Reader) (next func() (string, error), end func() error, err error) {
	end = func() error { return nil }
	if len(o.texts) > 0 {
		rest := o.texts
		return func() (string, error) {
			if len(rest) == 0 {
				return "", io.EOF
			}
			text := rest[0]
			rest = rest[1:]
			return text, nil
		}, end, nil
	}
	name := "standard input"
	if o.file != "" && o.file != "-" {
		f, err := os.Open(o.file)
		if err != nil {
			return nil, nil, err
		}
		in, end, name = f, f.Close, o.file
	}
	lines, line := bufio.NewScanner(in), 0
	lines.Buffer(nil, longestLine)
	return func() (string, error) {
		if line++; lines.Scan() {
			return strings.TrimSuffix(lines.Text(), "\r"), nil
		}
		if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
			return "", fmt.Errorf("%s, line %d: more than %d bytes", name, line, longestLine)
		} else if err != nil {
			return "", fmt.Errorf("%s, line %d: %w", name, line, err)
		}
		return "", io.EOF
	}, end, nil
}

type result struct {
	Text      string    `json:"text"`
	Tokens    int       `json:"tokens"`    // tokens that the model reads
	Truncated bool      `json:"truncated"` // whether the text was truncated
	Vector    []float32 `json:"vector"`
}

// embed computes the vectors of the texts and prints them in order.
func embed(ctx context.Context, f *Folder, s *bert.Step, next func() (string, error), p printer) error {
	h := f.Model.Config().Hidden
	var b bert.Batch
	var e tokenizer.Encoding
	var results []result
	var vectors []float32
	for done := false; !done; {
		b.IDs, b.Starts, results = b.IDs[:0], append(b.Starts[:0], 0), results[:0]
		for len(results) < batchTexts && len(b.IDs) < batchTokens && !done {
			text, err := next()
			if err == io.EOF {
				done = true
				continue
			} else if err != nil {
				return err
			}
			f.Tokenizer.Encode(&e, f.MaxTokens, text)
			b.IDs = append(b.IDs, e.IDs...)
			r := result{Text: text, Tokens: len(e.IDs), Truncated: e.Tokens > len(e.IDs)}
			b.Starts = append(b.Starts, int32(len(b.IDs)))
			results = append(results, r)
		}
		if len(vectors) < len(results)*h {
			vectors = make([]float32, len(results)*h)
		}
		if err := s.Vectors(ctx, vectors[:len(results)*h], b); err != nil {
			return err
		}
		for i := range results {
			results[i].Vector = vectors[i*h:][:h]
			if err := p.print(&results[i]); err != nil {
				return err
			}
		}
	}
	return p.end()
}
