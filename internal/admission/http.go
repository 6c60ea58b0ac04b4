package admission

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
)

// Statuses maps outcomes to HTTP statuses.
var Statuses = map[Outcome]int{
	OK:          http.StatusOK,
	ErrBad:      http.StatusBadRequest,
	ErrTooLarge: http.StatusRequestEntityTooLarge,
	ErrBusy:     http.StatusServiceUnavailable,
	ErrLate:     http.StatusGatewayTimeout,
	ErrMissed:   http.StatusGatewayTimeout,
	ErrGone:     http.StatusBadRequest, // not sent: the client ended the request
	ErrClosed:   http.StatusServiceUnavailable,
	ErrFailed:   http.StatusInternalServerError,
}

// NewMux returns a handler of GET /healthz, which reports whether the Queue drains, and of GET
// /metrics, whose page the function metrics writes.
func (q *Queue[J, A]) NewMux(metrics func(io.Writer)) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if q.State().Draining {
			http.Error(w, "draining", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		var text strings.Builder // so that a slow client does not hold a lock
		metrics(&text)
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		io.WriteString(w, text.String())
	})
	return mux
}

// linger is the time in which a client may still send a body that the server ignores. Some clients
// read the answer only after they have sent the body.
const linger = time.Second

// Unread lets h answer before the body has arrived, and ends the connection after a second.
// Otherwise net/http would wait for the body, possibly forever. A handler that does read the body
// removes the header Connection and sets another read deadline.
func Unread(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			w.Header().Set("Connection", "close")
			http.NewResponseController(w).SetReadDeadline(time.Now().Add(linger))
		}
		h.ServeHTTP(w, r)
	})
}

// Line returns an error's text as one line of printable characters, shortened if it is long.
func Line(err error) string {
	const most = 300
	text := strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return ' '
	}, err.Error())
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}

// NewHTTP returns an HTTP server that limits the number of connections and the time of each phase of
// a request.
func NewHTTP(h http.Handler, l Limits) *http.Server {
	return &http.Server{Handler: Unread(h), MaxHeaderBytes: 16 << 10, ConnState: atMost(l.Connections),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, // the request's deadline replaces ReadTimeout on admission
		WriteTimeout: l.Timeout + time.Minute, IdleTimeout: time.Minute}
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

// Serve serves on the listener until ctx ends. It then drains the Queue, for at most the duration
// drain. Meanwhile /healthz reports that the server is draining.
func (q *Queue[J, A]) Serve(ctx context.Context, listener net.Listener, server *http.Server, drain time.Duration) error {
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	unanswered := q.Drain(limit)
	if server.Shutdown(limit) != nil {
		server.Close()
	}
	return errors.Join(err, unanswered)
}
