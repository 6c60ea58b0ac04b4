package main

// #include "abi.h"
import "C"

import (
	"fmt"
	"strings"
	"time"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// print writes s and a zero byte to buf, which has n bytes. It cuts s to fit, but returns the uncut
// length.
func print(buf *C.char, n C.size_t, s string) int {
	if buf != nil && n > 0 {
		to := bytesAt(buf, int(min(n, C.size_t(len(s))+1)))
		to[copy(to[:len(to)-1], s)] = 0
	}
	return len(s)
}

func explanation(s *session, p flashkit.Problem, pass flashkit.Pass) (string, error) {
	verdicts, err := s.Explain(p, pass)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, v := range verdicts {
		mark := "-"
		if v.Chosen {
			mark = "*"
		}
		fmt.Fprintf(&text, "%s\t%s\t%d\t%s\n", mark, v.Name, v.Cost.Nanoseconds(), plain(v.Reason))
	}
	return text.String(), nil
}

func listing(s *session) string {
	var text strings.Builder
	for _, k := range s.Kernels() {
		missing := ""
		if k.Missing != nil {
			missing = k.Missing()
		}
		fmt.Fprintf(&text, "%s\t%s\t%s\t%s\n", k.Name, k.Pass, plain(missing), plain(k.About))
	}
	return text.String()
}

// plain replaces each run of white space, such as tabs and newlines, by a space.
func plain(s string) string { return strings.Join(strings.Fields(s), " ") }

func bytesAt(at *C.char, n int) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(at)), n) }

// word returns a pointer field of a C structure as a number. The field may hold a handle or a
// device address, which Go must not treat as a pointer.
func word[T any](p *T) uintptr { return *(*uintptr)(unsafe.Pointer(p)) }

func duration(ns C.int64_t) time.Duration { return time.Duration(ns) }
