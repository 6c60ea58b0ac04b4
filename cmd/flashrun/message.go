package main

import (
	"fmt"
	"runtime"
	"strings"
	"unicode/utf8"

	"github.com/flashkit-go/flashkit/internal/terminal"
)

// longest is the maximum length of a message in characters: texts of files and arguments are
// unbounded.
const longest = 300

// message returns s on one line of printable characters. A long message loses its middle: the field
// at fault is at the beginning, the reason at the end.
func message(s string) string {
	const end = 100
	s = terminal.Printable(strings.ReplaceAll(s, "\n", "; "))
	if utf8.RuneCountInString(s) <= longest {
		return s
	}
	r := []rune(s)
	const gap = " ... "
	return string(r[:longest-end-len(gap)]) + gap + string(r[len(r)-end:])
}

// crashed returns the message for a panic, which is always a bug. Only the deferred function that
// recovers may call it.
func crashed(value any) string {
	where := ""
	var callers [32]uintptr
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers[:])])
	for panicked := false; ; {
		f, more := frames.Next()
		inRuntime := strings.HasPrefix(f.Function, "runtime.")
		if panicked && !inRuntime {
			where = fmt.Sprintf(" in %s, line %d", f.Function, f.Line)
			break
		}
		panicked = panicked || inRuntime
		if !more {
			break
		}
	}
	return message(fmt.Sprintf("internal error: %v%s; please report it: https://github.com/flashkit-go/flashkit/issues", value, where))
}
