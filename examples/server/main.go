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
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/flashkit-go/flashkit/dispatch"
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
	limits := Limits{Short: 5 * time.Millisecond, Batch: 8, Copied: 128 << 10}
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
	return serve(ctx, listener, newFront(s), s, *drain)
}

// newFront returns the HTTP server for s. The HTTP server limits the number of connections and the
// time of each phase of a request.
func newFront(s *Server) *http.Server {
	return &http.Server{Handler: NewHandler(s), MaxHeaderBytes: 16 << 10, ConnState: atMost(s.limits.Connections),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, // the request's deadline replaces ReadTimeout on admission
		WriteTimeout: s.limits.Timeout + time.Minute, IdleTimeout: time.Minute}
}

// full is the answer to a connection beyond the limit.
const full = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 27\r\n\r\nbusy: too many connections\n"

// atMost returns a hook for http.Server.ConnState. While n connections are open, the hook answers
// each further connection with the text full, and closes that connection.
func atMost(n int) func(net.Conn, http.ConnState) {
	var open atomic.Int64
	return func(conn net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			if open.Add(1) > int64(n) {
				conn.SetWriteDeadline(time.Now().Add(time.Second))
				io.WriteString(conn, full)
				conn.Close()
			}
		case http.StateClosed:
			open.Add(-1)
		}
	}
}

// serve serves on the listener until ctx ends. It then drains s, for at most the duration drain.
// Meanwhile /healthz reports that the server is draining.
func serve(ctx context.Context, listener net.Listener, front *http.Server, s *Server, drain time.Duration) error {
	failed := make(chan error, 1)
	go func() { failed <- front.Serve(listener) }()
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	unanswered := s.Drain(limit)
	if front.Shutdown(limit) != nil {
		front.Close()
	}
	return errors.Join(err, unanswered)
}
