package main

import (
	"fmt"
	"runtime"
	"strings"
	"unicode/utf8"

	"github.com/flashkit-go/flashkit/internal/terminal"
)

// longest is the maximum length of an error message in characters. A message may quote a file or an
// argument of any length.
const longest = 300

// message returns s as one line of printable characters. It cuts the middle of a long message,
// because the beginning names the invalid field and the end gives the reason.
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

// crashed returns the error message for a recovered panic, which is always a bug. It must be called
// by the deferred function that recovers, because it searches the stack for the function that
// panicked.
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
