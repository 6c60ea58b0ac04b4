package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/conformance/oracle"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/admission"
)

// A client asks a server over HTTP.
type client struct {
	url  string
	http http.Client
}

func newClient(t testing.TB, url string) *client {
	// The body is sent only when the server requests it.
	transport := &http.Transport{MaxIdleConnsPerHost: 100, ExpectContinueTimeout: time.Minute}
	t.Cleanup(transport.CloseIdleConnections)
	return &client{url, http.Client{Transport: transport}}
}

// A refusal is an answer without numbers.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return fmt.Sprint(r.status, " ", r.text) }

// outcome returns the word that every refusal begins with.
func (r *refusal) outcome() admission.Outcome {
	word, _, _ := strings.Cut(r.text, ":")
	return admission.Outcome(strings.TrimSpace(word))
}

// attend asks for a problem over Q, K and V, which body holds.
func (c *client) attend(ctx context.Context, p flashkit.Problem, patience time.Duration, body []byte) ([]float32, error) {
	asked, err := json.Marshal(ask{p.String(), patience.Milliseconds()})
	if err != nil {
		return nil, err
	}
	return c.send(ctx, string(asked), bytes.NewReader(body))
}

func (c *client) send(ctx context.Context, asked string, body io.Reader) ([]float32, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/attention", body)
	if err != nil {
		return nil, err
	}
	r.Header.Set(header, asked)
	r.Header.Set("Expect", "100-continue")
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, &refusal{resp.StatusCode, string(raw)}
	}
	o := make([]float32, len(raw)/4)
	_, err = binary.Decode(raw, binary.LittleEndian, o)
	return o, err
}

// get returns the body and status of a page.
func (c *client) get(t testing.TB, path string) (string, int) {
	resp, err := c.http.Get(c.url + path)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(text), resp.StatusCode
}

// A sample is a request and its answer by the oracle.
type sample struct {
	p       flashkit.Problem
	q, k, v []float32
	body    []byte
	want    []float64
}

func newSample(t testing.TB, name string) *sample {
	p, err := flashkit.ParseProblem(name)
	require.NoError(t, err)
	s := &sample{p: p, q: random(p.QShape()), k: random(p.KShape()), v: random(p.VShape())}
	for _, x := range [][]float32{s.q, s.k, s.v} {
		for _, v := range x {
			s.body = binary.LittleEndian.AppendUint32(s.body, math.Float32bits(v))
		}
	}
	return s
}

// answered returns a sample with the oracle's answer.
func answered(t testing.TB, name string) *sample {
	s := newSample(t, name)
	s.want, _ = oracle.Forward(s.p, oracle.Inputs{Q: doubles(s.q), K: doubles(s.k), V: doubles(s.v)})
	return s
}

func random(s [4]int) []float32 {
	x := make([]float32, size(s))
	for i := range x {
		x[i] = float32(rand.NormFloat64())
	}
	return x
}

func doubles(x []float32) []float64 {
	y := make([]float64, len(x))
	for i := range x {
		y[i] = float64(x[i])
	}
	return y
}

// differ returns how an answer differs from the oracle's, "" if it does not.
func (s *sample) differ(o []float32) string {
	if len(o) != len(s.want) {
		return fmt.Sprintf("%s: %d numbers rather than %d", s.p, len(o), len(s.want))
	}
	for i := range o {
		if diff := math.Abs(float64(o[i]) - s.want[i]); !(diff <= 1e-5) {
			return fmt.Sprintf("%s: number %d is off by %g", s.p, i, diff)
		}
	}
	return ""
}

// inProcess asks a server without HTTP.
func inProcess(ctx context.Context, s *Server, x *sample) ([]float32, error) {
	t, err := s.Admit(ctx, x.p)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	return t.Attend(x.q, x.k, x.v)
}

var roomy = Limits{Limits: admission.Limits{Connections: 1000, Requests: 100, Bytes: 1 << 30, Timeout: time.Hour, Short: 5 * time.Millisecond},
	Request: 64 << 20, Batch: 8, Copied: 1 << 20}

// cpu returns a dispatcher that lives until the test ends. Its backend keeps goroutines.
func cpu(t testing.TB) *dispatch.Dispatcher {
	before := runtime.NumGoroutine()
	d := dispatch.New(simd.New())
	t.Cleanup(func() {
		require.NoError(t, d.Close())
		settle(t, func() bool { return runtime.NumGoroutine() <= before })
	})
	return d
}

// start runs a server until the test ends, and checks that nothing of it remains.
func start(t testing.TB, a attention, l Limits) *Server {
	s := NewServer(a, l)
	t.Cleanup(func() {
		soon, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		require.NoError(t, s.Drain(soon))
		require.Equal(t, admission.State{Draining: true}, s.State())
		settle(t, func() bool { return !strings.Contains(stacks(), "admission.(*Queue") })
	})
	return s
}

// settle waits until goroutines have ended. It counts how often it has looked: a clock goes
// on while a machine stops the process.
func settle(t testing.TB, ended func() bool) {
	for looks := 0; !ended(); looks++ {
		time.Sleep(time.Millisecond)
		if looks == 20_000 {
			t.Fatalf("goroutines are left:\n%s", stacks())
		}
	}
}

func stacks() string {
	text := make([]byte, 1<<20)
	return string(text[:runtime.Stack(text, true)])
}

// online serves until the test ends, then drains. A client that the machine stalls together with
// the server is not slow.
func online(t testing.TB, s *Server) *client {
	listener, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	front := newFront(s)
	front.ReadHeaderTimeout, front.ReadTimeout, front.IdleTimeout = time.Hour, time.Hour, time.Hour
	go func() { ended <- s.Serve(ctx, listener, front, time.Minute) }()
	t.Cleanup(func() {
		end()
		require.NoError(t, <-ended)
	})
	return newClient(t, "http://"+listener.Addr().String())
}

func newFront(s *Server) *http.Server { return admission.NewHTTP(NewHandler(s), s.limits.Limits) }
