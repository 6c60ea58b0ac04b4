package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A printer prints results. print gets one result at a time, in order; end is called after the last
// one.
type printer interface {
	print(*result) error
	end() error
}

func (o *Options) printer(w *bufio.Writer, hidden int) printer {
	switch {
	case o.json:
		return &lines{w, json.NewEncoder(w)}
	case o.vectors:
		return &lines{w: w}
	}
	return &table{w: w, hidden: hidden}
}

// lines prints each result as one line: JSON, or the numbers of the vector. It flushes w after each
// line.
type lines struct {
	w    *bufio.Writer
	json *json.Encoder // nil to print numbers
}

func (l *lines) print(r *result) error {
	if l.json != nil {
		if err := l.json.Encode(r); err != nil {
			return err
		}
		return l.w.Flush()
	}
	var number [32]byte
	for i, v := range r.Vector {
		if i > 0 {
			l.w.WriteByte(' ')
		}
		l.w.Write(strconv.AppendFloat(number[:0], float64(v), 'g', -1, 32))
	}
	l.w.WriteByte('\n')
	return l.w.Flush()
}

func (l *lines) end() error { return nil }

// mostInTable is the maximum number of texts in a table. More columns would be unreadable.
const mostInTable = 50

// A table prints the cosine similarities of all texts.
type table struct {
	w       *bufio.Writer
	hidden  int
	texts   []string
	vectors []float32
}

func (t *table) print(r *result) error {
	if len(t.texts) == mostInTable {
		return fmt.Errorf("more than %d texts are too many for a table: --vectors and --json print vectors", mostInTable)
	}
	text := r.Text
	if r.Truncated {
		text += " (cut)"
	}
	t.texts, t.vectors = append(t.texts, text), append(t.vectors, slices.Clone(r.Vector)...)
	return nil
}

func (t *table) end() error {
	for i := range t.texts {
		fmt.Fprintf(t.w, "%7d", i+1)
	}
	if len(t.texts) > 0 {
		t.w.WriteByte('\n')
	}
	for i, text := range t.texts {
		for j := range t.texts {
			fmt.Fprintf(t.w, "%7.4f", dot(t.vectors[i*t.hidden:][:t.hidden], t.vectors[j*t.hidden:][:t.hidden]))
		}
		fmt.Fprintf(t.w, "  %d  %s\n", i+1, short(text))
	}
	return nil
}

func dot(a, b []float32) (sum float64) {
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

// short returns the beginning of a text in printable characters.
func short(text string) string {
	const most = 60
	clean := strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '.'
		}
		return r
	}, text[:min(len(text), utf8.UTFMax*(most+1))])
	if utf8.RuneCountInString(clean) <= most {
		return clean
	}
	return string([]rune(clean)[:most]) + "..."
}
