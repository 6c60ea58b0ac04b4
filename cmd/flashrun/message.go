package main

import (
	"fmt"
	"runtime"
	"strings"
	"unicode/utf8"

	"github.com/flashkit-go/flashkit/internal/terminal"
)

// longest is the characters of a message: what a file or an argument holds may have
// any number of them.
const longest = 300

// message returns s in one line of printable characters, without its middle if it is
// long: the field is at the beginning, what is wrong with it at the end.
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

// crashed returns the message for a panic: it is a bug, wherever the input came from.
// It is called by the deferred function that has recovered the value.
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
