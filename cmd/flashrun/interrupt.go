package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/flashkit-go/flashkit/internal/outfile"
)

// patience is the time from the first signal until flashrun forces its own end. During this time a
// command may print the measurements made so far. Force is necessary, because some work ignores a
// canceled context: a read of a pipe, the float64 reference computation, a slow write to a disk.
const patience = 700 * time.Millisecond

// interruptible returns a context that is canceled by the first SIGINT, SIGTERM or SIGHUP. A second
// signal ends the program at once.
func interruptible() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	received := make(chan os.Signal, 2)
	signal.Notify(received, outfile.Signals()...)
	go func() {
		<-received
		cancel()
		select {
		case <-received:
		case <-time.After(patience):
		}
		outfile.Abandon()
		fmt.Fprintln(os.Stderr, "flashrun: interrupted")
		os.Exit(exitInterrupted)
	}()
	return ctx
}
