// Package terminal formats output for people: folded lines, tables, progress, sizes and times.
package terminal

import (
	"bytes"
	"io"
	"os"
	"strings"
	"unicode/utf8"
)

const (
	usualColumns = 80
	narrowest    = 20 // minimum width for folding
)

// A folder folds lines to the width of a terminal.
type folder struct {
	w     io.Writer
	width int
	line  []byte // unfinished line
}

// Writer returns a writer that folds lines if w is a terminal. Otherwise it returns w.
func Writer(w io.Writer) io.Writer {
	if width := Width(w); width > 0 {
		return &folder{w: w, width: width}
	}
	return w
}

// Width returns the width in columns to which lines are folded, or 0 if w is no terminal.
func Width(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	if width := columns(f); width > 0 {
		return max(width, narrowest)
	}
	return 0
}

// Write folds the lines of b.
func (f *folder) Write(b []byte) (int, error) {
	for rest := b; ; {
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		f.line = append(f.line, line...)
		if !ended {
			return len(b), nil
		}
		_, err := io.WriteString(f.w, fold(string(f.line), f.width))
		if f.line, rest = f.line[:0], after; err != nil {
			return 0, err
		}
	}
}

// fold breaks a line that is too wide. It breaks between columns, or between words of the last
// column, whose further lines are indented to the column's start. Columns are separated by two
// spaces or more.
func fold(line string, width int) string {
	var b strings.Builder
	for indent := ""; ; {
		if utf8.RuneCountInString(line) <= width {
			return b.String() + line + "\n"
		}
		r := []rune(line)
		fits := string(r[:width+1])
		from := len(indent)
		gap := strings.LastIndex(strings.TrimRight(fits, " "), "  ")
		at := strings.LastIndexByte(fits, ' ')
		switch column := gap + 2; {
		case gap > from && gap > len(fits)/2: // move whole columns to the next line
			at, indent = gap, "    "
		case gap > from && indent == "":
			indent = strings.Repeat(" ", column)
		}
		if at <= from {
			at = len(string(r[:width]))
		}
		b.WriteString(strings.TrimRight(line[:at], " ") + "\n")
		line = indent + strings.TrimLeft(line[at:], " ")
	}
}
