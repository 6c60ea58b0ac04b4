package main

import (
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

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/admission"
)

// header is the HTTP header with the request's parameters. Because the parameters are in a header,
// the server can reject a request without reading the body.
const header = "Attention"

type ask struct {
	Problem   string `json:"problem"`    // a problem name, such as b1-h8-g2-n1-m1024-d64-f32-causal
	TimeoutMS int64  `json:"timeout_ms"` // time from the header's arrival to the answer; 0: the server's limit
}

type front struct {
	server *Server
	counts admission.Counts
}

// NewHandler returns a handler of POST /attention, GET /healthz and GET /metrics.
func NewHandler(s *Server) http.Handler {
	f := &front{server: s}
	mux := s.NewMux(func(w io.Writer) { s.WriteMetrics(w, &f.counts) })
	mux.HandleFunc("POST /attention", f.attention)
	return mux
}

func (f *front) attention(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	err := f.attend(w, r, start)
	o := admission.Of(err)
	if o == admission.ErrBusy || o == admission.ErrClosed {
		w.Header().Set("Retry-After", "1")
	}
	if o != admission.OK && o != admission.ErrGone {
		http.Error(w, admission.Line(err), admission.Statuses[o]) // the body is a line that begins with the outcome
	}
	f.counts.Ended(o, time.Since(start))
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
		return fmt.Errorf("%w: Content-Length: %d: Q, K and V of %s have %d bytes", admission.ErrBad, r.ContentLength, p, t.body)
	}
	rc := http.NewResponseController(w)
	// At the deadline, t.Arrived ends the reading of a slow body, between two chunks. If the client
	// sends nothing, the read deadline ends the reading a second later. net/http then ends the
	// connection, and the client may not see the answer.
	rc.SetReadDeadline(deadline.Add(time.Second))
	r.Body = http.MaxBytesReader(w, r.Body, r.ContentLength)
	var tensors [3][]float32
	for i, shape := range [...][4]int{p.QShape(), p.KShape(), p.VShape()} {
		if tensors[i], err = readFloats(r.Body, size(shape), t.Arrived); err != nil {
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
		return p, 0, fmt.Errorf("%w: there must be one header %s, and there are %d", admission.ErrBad, header, len(values))
	}
	var a ask
	d := json.NewDecoder(strings.NewReader(values[0]))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return p, 0, fmt.Errorf("%w: header %s: %w", admission.ErrBad, header, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return p, 0, fmt.Errorf("%w: header %s: there is something after the JSON", admission.ErrBad, header)
	}
	limit := f.server.limits.Timeout
	if a.TimeoutMS < 0 || a.TimeoutMS > limit.Milliseconds() {
		return p, 0, fmt.Errorf("%w: timeout_ms %d: must be 1 to %d, or 0 for that", admission.ErrBad, a.TimeoutMS, limit.Milliseconds())
	}
	if timeout = time.Duration(a.TimeoutMS) * time.Millisecond; timeout == 0 {
		timeout = limit
	}
	if p, err = flashkit.ParseProblem(a.Problem); err != nil {
		err = fmt.Errorf("%w: %w", admission.ErrBad, err)
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
			return nil, fmt.Errorf("%w: the body takes too long", admission.ErrMissed)
		} else if err != nil {
			return nil, fmt.Errorf("%w: the body ended early: %w", admission.ErrBad, err)
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
			return fmt.Errorf("%w: %w", admission.ErrGone, err)
		}
		x = x[len(part):]
	}
	return nil
}
