// Server answers requests for attention over HTTP. It admits requests that it can answer in time,
// and rejects other requests at once. On SIGTERM it answers the admitted requests and ends.
// README.md describes the protocol.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/admission"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process
	switch err := run(ctx, os.Args[1:], os.Stderr); {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "server:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends, then answers the admitted requests.
func run(ctx context.Context, args []string, w io.Writer) error {
	limits := Limits{Limits: admission.Limits{Short: 5 * time.Millisecond}, Batch: 8, Copied: 128 << 10}
	flags := flag.NewFlagSet("server", flag.ContinueOnError)
	flags.SetOutput(w)
	addr := flags.String("addr", "localhost:8080", "`address` to listen on")
	drain := flags.Duration("drain", 20*time.Second, "longest `time` to answer what was admitted, on SIGTERM")
	flags.IntVar(&limits.Connections, "connections", 1024, "most connections, idle ones included")
	flags.IntVar(&limits.Requests, "requests", 256, "most requests in work")
	flags.Int64Var(&limits.Bytes, "bytes", 512<<20, "most `bytes` that they take")
	flags.Int64Var(&limits.Request, "request", 64<<20, "most `bytes` that one takes: tensors and workspace")
	flags.DurationVar(&limits.Timeout, "timeout", 30*time.Second, "latest deadline of a request")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("argument %q: there are none but flags", flags.Arg(0))
	}
	if limits.Connections <= 0 || limits.Requests <= 0 || limits.Bytes <= 0 || limits.Request <= 0 || limits.Timeout < time.Millisecond || *drain < 0 {
		return errors.New("limits must be positive")
	}
	d, err := dispatch.Default(ctx)
	if err != nil {
		return err
	}
	defer d.Close()
	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	debug.SetMemoryLimit(limits.Bytes + limits.Bytes/4 + 64<<20) // the limit of admitted requests, and a reserve for garbage
	fmt.Fprintf(w, "server: listening on http://%s\n", listener.Addr())
	s := NewServer(d, limits)
	return s.Serve(ctx, listener, admission.NewHTTP(NewHandler(s), limits.Limits), *drain)
}
