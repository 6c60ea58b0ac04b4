package terminal

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Printable returns s with unprintable characters escaped, such as terminal controls.
func Printable(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case strconv.IsPrint(r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
		}
	}
	return b.String()
}

// Seconds formats a time in seconds.
func Seconds(s float64) string {
	d := time.Duration(s * 1e9)
	switch {
	case d >= time.Second:
		return d.Round(time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(time.Microsecond).String()
	}
	return d.Round(10 * time.Nanosecond).String()
}

// Bytes formats a size in bytes.
func Bytes(b float64) string {
	for _, unit := range []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"} {
		if b < 1024 {
			if unit == "B" {
				return fmt.Sprintf("%.0f B", b)
			}
			return fmt.Sprintf("%.1f %s", b, unit)
		}
		b /= 1024
	}
	return fmt.Sprintf("%.1f EiB", b)
}

// WriteTable writes rows of equal length with aligned columns. Columns whose index is below left
// are left-aligned, all others right-aligned. A column with only a header is dropped.
func WriteTable(w io.Writer, rows [][]string, left int) {
	width, filled := make([]int, len(rows[0])), make([]bool, len(rows[0]))
	for r, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
			filled[i] = filled[i] || r > 0 && cell != ""
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			if !filled[i] {
				continue
			}
			gap := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if i > 0 {
				line.WriteString("  ")
			}
			if i < left {
				line.WriteString(cell + gap)
			} else {
				line.WriteString(gap + cell)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}
