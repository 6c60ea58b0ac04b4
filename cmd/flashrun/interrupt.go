package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/flashkit-go/flashkit/internal/outfile"
)

// patience is how long the command may take to end by itself after the first signal,
// with what it has measured so far. Then the program ends, whatever it waits for or
// computes: a pipe that nobody writes to, the oracle, a file on a slow disk.
const patience = 700 * time.Millisecond

// interruptible returns a context that ends with the first SIGINT, SIGTERM or SIGHUP. A second
// one ends the program at once.
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
