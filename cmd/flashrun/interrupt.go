package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// patience is how long the command may take to end by itself after the first signal,
// with what it has measured so far. Then the program ends, whatever it waits for or
// computes: a pipe that nobody writes to, the oracle, a file on a slow disk.
const patience = 700 * time.Millisecond

// interruptible returns a context that ends with the first SIGINT or SIGTERM. A second
// one ends the program at once.
func interruptible() context.Context {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() {
		stop()
		time.Sleep(patience)
		unfinished.remove()
		fmt.Fprintln(os.Stderr, "flashrun: interrupted")
		os.Exit(exitInterrupted)
	})
	return ctx
}

// unfinished are the temporary files of outputs.
var unfinished tempFiles

// tempFiles knows files by name that are to be removed if the program ends early.
type tempFiles struct {
	mu    sync.Mutex
	names map[string]bool
}

func (t *tempFiles) add(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.names == nil {
		t.names = map[string]bool{}
	}
	t.names[name] = true
}

func (t *tempFiles) forget(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.names, name)
}

// remove removes them, and stays locked: no file appears afterwards.
func (t *tempFiles) remove() {
	t.mu.Lock()
	for name := range t.names {
		os.Remove(name)
	}
}
