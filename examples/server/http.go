package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/flashkit-go/flashkit"
)

// header is the HTTP header with the request's parameters. Because the parameters are in a header,
// the server can reject a request without reading the body.
const header = "Attention"

type ask struct {
	Problem   string `json:"problem"`    // a problem name, such as b1-h8-g2-n1-m1024-d64-f32-causal
	TimeoutMS int64  `json:"timeout_ms"` // time from the header's arrival to the answer; 0: the server's limit
}

// statuses maps outcomes to HTTP statuses. Except for OK, the response's body is a line that begins
// with the outcome.
var statuses = map[Outcome]int{
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

type front struct {
	server  *Server
	metrics metrics
}

// NewHandler returns a handler of POST /attention, GET /healthz and GET /metrics.
func NewHandler(s *Server) http.Handler {
	f := &front{server: s, metrics: metrics{outcomes: map[Outcome]uint64{}}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /attention", f.attention)
	mux.HandleFunc("GET /healthz", f.health)
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		var text bytes.Buffer // a buffer, so that a slow client does not hold a lock
		f.metrics.write(&text, s)
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		w.Write(text.Bytes())
	})
	return unread(mux)
}

// linger is how long a client may still send a body that the server ignores. Some clients read the
// answer only after they have sent the body.
const linger = time.Second

// unread lets h answer before the body has arrived, and ends the connection after linger. Otherwise
// net/http would wait for the body, possibly forever. A handler that does read the body removes the
// header Connection and sets another read deadline.
func unread(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			w.Header().Set("Connection", "close")
			http.NewResponseController(w).SetReadDeadline(time.Now().Add(linger))
		}
		h.ServeHTTP(w, r)
	})
}

func (f *front) health(w http.ResponseWriter, _ *http.Request) {
	f.server.mu.Lock()
	draining := f.server.draining
	f.server.mu.Unlock()
	if draining {
		http.Error(w, "draining", http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

func (f *front) attention(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	err := f.attend(w, r, start)
	o := outcome(err)
	if o == ErrBusy || o == ErrClosed {
		w.Header().Set("Retry-After", "1")
	}
	if o != OK && o != ErrGone {
		http.Error(w, line(err), statuses[o])
	}
	f.metrics.ended(o, time.Since(start))
}

// line returns an error's text as one line of printable characters, shortened if it is long.
func line(err error) string {
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

// attend answers a request. Before admission it does not read the body and allocates no memory for
// tensors.
func (f *front) attend(w http.ResponseWriter, r *http.Request, start time.Time) error {
	p, timeout, err := f.parse(r)
	if err != nil {
		return err
	}
	deadline := start.Add(timeout)
	ctx, cancel := context.WithDeadline(r.Context(), deadline)
	defer cancel()
	t, err := f.server.Admit(ctx, p)
	if err != nil {
		return err
	}
	defer t.Close()
	if r.ContentLength != t.body {
		return fmt.Errorf("%w: Content-Length: %d: Q, K and V of %s have %d bytes", ErrBad, r.ContentLength, p, t.body)
	}
	rc := http.NewResponseController(w)
	// At the deadline, t.arrived ends the reading of a slow body, between two chunks. If the client
	// sends nothing, the read deadline ends the reading a second later. net/http then ends the
	// connection, and the client may not see the answer.
	rc.SetReadDeadline(deadline.Add(time.Second))
	r.Body = http.MaxBytesReader(w, r.Body, r.ContentLength)
	var tensors [3][]float32
	for i, shape := range [...][4]int{p.QShape(), p.KShape(), p.VShape()} {
		if tensors[i], err = readFloats(r.Body, size(shape), t.arrived); err != nil {
			return err
		}
	}
	w.Header().Del("Connection")
	rc.SetReadDeadline(time.Time{}) // the read deadline would end the connection while the request waits
	o, err := t.Attend(tensors[0], tensors[1], tensors[2])
	if err != nil {
		return err
	}
	return writeFloats(w, o)
}

func (f *front) parse(r *http.Request) (p flashkit.Problem, timeout time.Duration, err error) {
	values := r.Header.Values(header)
	if len(values) != 1 {
		return p, 0, fmt.Errorf("%w: there must be one header %s, and there are %d", ErrBad, header, len(values))
	}
	var a ask
	d := json.NewDecoder(strings.NewReader(values[0]))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return p, 0, fmt.Errorf("%w: header %s: %w", ErrBad, header, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return p, 0, fmt.Errorf("%w: header %s: there is something after the JSON", ErrBad, header)
	}
	limit := f.server.limits.Timeout
	if a.TimeoutMS < 0 || a.TimeoutMS > limit.Milliseconds() {
		return p, 0, fmt.Errorf("%w: timeout_ms %d: must be 1 to %d, or 0 for that", ErrBad, a.TimeoutMS, limit.Milliseconds())
	}
	if timeout = time.Duration(a.TimeoutMS) * time.Millisecond; timeout == 0 {
		timeout = limit
	}
	if p, err = flashkit.ParseProblem(a.Problem); err != nil {
		err = fmt.Errorf("%w: %w", ErrBad, err)
	}
	return p, timeout, err
}

// chunk is the maximum number of floats that one read or write transfers.
const chunk = 16 << 10

// readFloats reads n little-endian float32. It allocates memory in proportion to the data that has
// arrived, even if n is huge. After each read it calls arrived with the number of bytes. If arrived
// returns an error, readFloats returns this error.
func readFloats(r io.Reader, n int, arrived func(bytes int) error) ([]float32, error) {
	raw := make([]byte, 4*min(n, chunk))
	x := make([]float32, 0, min(n, chunk))
	for len(x) < n {
		if len(x) == cap(x) {
			x = append(make([]float32, 0, min(n, 8*cap(x))), x...)
		}
		part := raw[:4*min(cap(x)-len(x), chunk)]
		if _, err := io.ReadFull(r, part); errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, fmt.Errorf("%w: the body takes too long", ErrMissed)
		} else if err != nil {
			return nil, fmt.Errorf("%w: the body ended early: %w", ErrBad, err)
		}
		if err := arrived(len(part)); err != nil {
			return nil, err
		}
		x = x[:len(x)+len(part)/4]
		binary.Decode(part, binary.LittleEndian, x[len(x)-len(part)/4:])
	}
	return x, nil
}

func writeFloats(w http.ResponseWriter, x []float32) error {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(4*len(x)))
	raw := make([]byte, 0, 4*min(len(x), chunk))
	for len(x) > 0 {
		part := x[:min(len(x), chunk)]
		raw, _ = binary.Append(raw[:0], binary.LittleEndian, part)
		if _, err := w.Write(raw); err != nil {
			return fmt.Errorf("%w: %w", ErrGone, err)
		}
		x = x[len(part):]
	}
	return nil
}
