package main

import "runtime"

// alone reports whether Go may use only one processor. Then calls use one goroutine, and the Go
// runtime gets a second processor. With a single processor, the runtime takes it from a C thread
// soon after a call, so that every later call must first get it back.
var alone = func() bool {
	if runtime.GOMAXPROCS(0) > 1 {
		return false
	}
	runtime.GOMAXPROCS(2)
	return true
}()
