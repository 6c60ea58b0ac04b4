package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/admission"
)

func TestHTTP(t *testing.T) {
	c := online(t, start(t, cpu(t), roomy))
	for _, name := range []string{"b1-h8-g2-n1-m300-d64-f32", "b1-h2-g1-n9-m40-d16-dv8-f32-window4.0", "b1-h3-g3-n0-m4-d2-f32", "b1-h3-g1-n2-m0-d2-f32"} {
		x := answered(t, name)
		o, err := c.attend(t.Context(), x.p, time.Minute, x.body)
		require.NoError(t, err)
		require.Empty(t, x.differ(o))
	}
	text, status := c.get(t, "/healthz")
	require.Equal(t, "ok\n200", fmt.Sprint(text, status))
	text, status = c.get(t, "/metrics")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, text, "\nattention_requests_total{outcome=\"ok\"} 4\n")
	require.Contains(t, text, "\nattention_answer_seconds_bucket{le=\"+Inf\"} 4\n")
	require.Contains(t, text, "\nattention_admitted 0\n")
	_, status = c.get(t, "/attention")
	require.Equal(t, http.StatusMethodNotAllowed, status)
}

// A NaN in a tensor is a number like any other.
func TestBitsTravel(t *testing.T) {
	c := online(t, start(t, cpu(t), roomy))
	x := newSample(t, "b1-h1-g1-n2-m1-d1-f32")
	o, err := c.attend(t.Context(), x.p, 0, []byte{0, 0, 0x80, 0x3f, 0, 0, 0x80, 0x3f, 0, 0, 0x80, 0x3f, 1, 0, 0xc0, 0x7f})
	require.NoError(t, err)
	require.Len(t, o, 2)
	require.True(t, math.IsNaN(float64(o[0])) && math.IsNaN(float64(o[1])))
}

const small = "b1-h1-g1-n1-m2-d1-f32" // its body has 20 bytes

// hostile requests, and the status and the words that answer them.
var hostile = []struct {
	name, header string
	body         int
	status       int
	words        string
}{
	{"rows", `{"problem":"b1-h1-g1-n4398046511104-m1-d1-f32"}`, 0, 413, "too_large: "},
	{"dim of nothing", `{"problem":"b1-h1-g1-n0-m0-d1125899906842624-f32"}`, 0, 413, "too_large: "},
	{"value dim of nothing", `{"problem":"b1-h1-g1-n0-m0-d1-dv1125899906842624-f32"}`, 0, 413, "too_large: "},
	{"heads of nothing", `{"problem":"b1-h1125899906842624-g1-n0-m0-d1-f32"}`, 0, 413, "too_large: "},
	{"more than an int", `{"problem":"b1-h1-g1-n9223372036854775807-m9223372036854775807-d1-f32"}`, 0, 400, "bad: "},
	{"more digits than an int", `{"problem":"b1-h1-g1-n99999999999999999999-m1-d1-f32"}`, 0, 400, "bad: "},
	{"negative", `{"problem":"b1-h1-g1-n-1-m1-d1-f32"}`, 0, 400, "bad: "},
	{"no heads", `{"problem":"b1-h0-g0-n1-m1-d1-f32"}`, 0, 400, "Heads"},
	{"heads that do not divide", `{"problem":"b1-h3-g2-n1-m1-d1-f32"}`, 0, 400, "KVHeads"},
	{"batch", `{"problem":"b2-h1-g1-n1-m2-d1-f32"}`, 40, 400, "batch 1"},
	{"empty batch", `{"problem":"b0-h1-g1-n1-m2-d1-f32"}`, 0, 400, "batch 1"},
	{"type", `{"problem":"b1-h1-g1-n1-m2-d1-f16"}`, 10, 400, "f32"},
	{"scale", `{"problem":"b1-h1-g1-n1-m2-d1-f32-scaleNaN"}`, 20, 400, "bad: "},
	{"endless scale", `{"problem":"b1-h1-g1-n1-m2-d1-f32-scaleInf"}`, 20, 400, "bad: "},
	{"no problem", `{}`, 0, 400, "bad: "},
	{"no header", ``, 0, 400, "bad: header Attention"},
	{"no JSON", `problem`, 0, 400, "bad: header Attention"},
	{"half a JSON", `{"problem":"` + small, 20, 400, "bad: header Attention"},
	{"two JSONs", `{"problem":"` + small + `"}{}`, 20, 400, "after the JSON"},
	{"JSON of another type", `{"problem":7}`, 20, 400, "bad: header Attention"},
	{"unknown field", `{"problem":"` + small + `","mask":true}`, 20, 400, `unknown field "mask"`},
	{"negative time", `{"problem":"` + small + `","timeout_ms":-1}`, 20, 400, "timeout_ms -1"},
	{"long time", `{"problem":"` + small + `","timeout_ms":9223372036854775807}`, 20, 400, "timeout_ms 9223372036854775807"},
	{"time of another type", `{"problem":"` + small + `","timeout_ms":1.5}`, 20, 400, "timeout_ms"},
	{"no body", `{"problem":"` + small + `"}`, 0, 400, "Content-Length: 0"},
	{"short body", `{"problem":"` + small + `"}`, 19, 400, "Content-Length: 19"},
	{"long body", `{"problem":"` + small + `"}`, 21, 400, "Content-Length: 21"},
	{"body of a stranger", `{"problem":"` + small + `"}`, 1 << 22, 400, "have 20 bytes"},
	{"long name", `{"problem":"` + strings.Repeat("x", 9000) + `"}`, 0, 400, "bad: "},
	{"control characters", `{"problem":"\u001b[31m\n\u0000"}`, 0, 400, "bad: "},
	{"long header", `{"problem":"` + strings.Repeat("x", 1<<20) + `"}`, 0, 431, ""},
}

// Each request gets one line with the reason, allocates nothing, and does not harm the server.
func TestHostileRequests(t *testing.T) {
	c := online(t, start(t, cpu(t), roomy))
	for _, h := range hostile {
		t.Run(h.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			o, err := c.send(t.Context(), h.header, bytes.NewReader(make([]byte, h.body)))
			runtime.ReadMemStats(&after)
			require.Nil(t, o)
			var r *refusal
			require.ErrorAs(t, err, &r)
			require.Equal(t, h.status, r.status, r.text)
			require.Contains(t, r.text, h.words)
			text := strings.TrimSuffix(r.text, "\n")
			require.LessOrEqual(t, len(text), 350)
			require.NotRegexp(t, `[[:cntrl:]]`, text)
			require.LessOrEqual(t, after.TotalAlloc-before.TotalAlloc, uint64(2*h.body+16<<20))
		})
	}
	x := answered(t, small)
	o, err := c.attend(t.Context(), x.p, 0, x.body)
	require.NoError(t, err)
	require.Empty(t, x.differ(o))
}

// raw sends an invalid request, and returns the status line and the last line.
func raw(t *testing.T, c *client, request string) (status, text string) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, request)
	require.NoError(t, err)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	all, _ := io.ReadAll(conn)
	status, _, _ = strings.Cut(string(all), "\r\n")
	lines := strings.Split(strings.TrimRight(string(all), "\r\n0"), "\n")
	return status, lines[len(lines)-1]
}

func TestHostileBytes(t *testing.T) {
	c := online(t, start(t, cpu(t), roomy))
	head := "POST /attention HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAttention: {\"problem\":\"" + small + "\"}\r\n"
	status, text := raw(t, c, head+"Transfer-Encoding: chunked\r\n\r\n14\r\n01234567890123456789\r\n0\r\n\r\n")
	require.Contains(t, status, "400")
	require.Contains(t, text, "Content-Length: -1")
	status, _ = raw(t, c, head+"Attention: {}\r\nContent-Length: 0\r\n\r\n")
	require.Contains(t, status, "400")
	status, _ = raw(t, c, head+"Content-Length: -20\r\n\r\n")
	require.Contains(t, status, "400")
	// A body that ends early: the request claims 48 MB, but only the received bytes are allocated.
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	big := strings.Replace(head, small, "b1-h1-g1-n0-m100000-d60-f32", 1)
	raw(t, c, big+"Content-Length: 48000000\r\n\r\n0123")
	runtime.ReadMemStats(&after)
	require.LessOrEqual(t, after.TotalAlloc-before.TotalAlloc, uint64(4<<20))
}

// A slow client is cut at its deadline, and the request of a client that leaves ends.
func TestSlowClients(t *testing.T) {
	s := start(t, newGate(), roomy)
	c := online(t, s)
	hanging, hang := io.Pipe()
	defer hang.Close()
	x := keys(t, 3)
	r, err := http.NewRequest(http.MethodPost, c.url+"/attention", hanging)
	require.NoError(t, err)
	r.ContentLength = int64(len(x.body))
	r.Header.Set(header, `{"problem":"`+x.p.String()+`","timeout_ms":50}`)
	resp, err := c.http.Do(r)
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, http.StatusGatewayTimeout, resp.StatusCode)

	ctx, leave := context.WithCancel(t.Context())
	errs := make(chan error, 1)
	go func() { _, err := c.attend(ctx, x.p, time.Minute, x.body); errs <- err }()
	<-s.attention.(*gate).entered
	leave()
	require.ErrorIs(t, <-errs, context.Canceled)
	settle(t, func() bool { return s.State().Admitted == 0 })
}

// held maps requests whose body never arrives to their answers.
var held = map[string]string{
	"POST /attention HTTP/1.1\r\nHost: x\r\nAttention: bad\r\nContent-Length: 200000\r\n":                                      "400",
	"POST /attention HTTP/1.1\r\nHost: x\r\nAttention: bad\r\nContent-Length: 20000000\r\n":                                    "400",
	"POST /attention HTTP/1.1\r\nHost: x\r\nAttention: bad\r\nTransfer-Encoding: chunked\r\n":                                  "400",
	"POST /attention HTTP/1.1\r\nHost: x\r\nAttention: {\"problem\":\"" + small + "\"}\r\nContent-Length: 21\r\n":              "400",
	"POST /attention HTTP/1.1\r\nHost: x\r\nAttention: {\"problem\":\"" + small + "\"}\r\nTransfer-Encoding: chunked\r\n":      "400",
	"POST /attention HTTP/1.1\r\nHost: x\r\nAttention: {\"problem\":\"b1-h1-g1-n9999999-m1-d9-f32\"}\r\nContent-Length: 9\r\n": "413",
	"PUT /attention HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n":                                                              "405",
	"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n":                                                               "404",
	"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n":                                                                "200",
	"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n":                                                       "200",
	"GET //healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n":                                                               "307",
	"PRI * HTTP/2.0\r\n": "400",
}

// A request answered before its body is read gets the answer at once, and its connection ends. A
// body that never arrives holds neither a connection nor the drain.
func TestBodiesThatNeverCome(t *testing.T) {
	s := start(t, cpu(t), Limits{Limits: admission.Limits{Connections: 1000, Requests: 256, Bytes: 1 << 30, Timeout: 30 * time.Second, Short: time.Millisecond}, Request: 1 << 20, Batch: 8, Copied: 1 << 10})
	listener, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, listener, newFront(s), 10*time.Minute) }()
	send := func(request string) net.Conn {
		conn, err := net.Dial("tcp", listener.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		_, err = io.WriteString(conn, request+"\r\n")
		require.NoError(t, err)
		conn.SetReadDeadline(time.Now().Add(time.Minute)) // of a busy machine
		return conn
	}
	conns := map[net.Conn]string{}
	for request, want := range held {
		for range 4 {
			conns[send(request)] = want
		}
	}
	for conn, want := range conns {
		all, err := io.ReadAll(conn)
		require.NoError(t, err, "the connection stays")
		require.Contains(t, strings.SplitN(string(all), "\r\n", 2)[0], "HTTP/1.1 "+want)
	}
	for request := range held { // and while it drains
		send(request)
	}
	end()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Fatal("the drain waits for bodies")
	}
}

// After reading the whole body, the connection serves the next request, even if this one was
// rejected.
func TestConnectionsAreKept(t *testing.T) {
	c := online(t, start(t, cpu(t), roomy))
	x := answered(t, small)
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	in := bufio.NewReader(conn)
	for range 3 {
		fmt.Fprintf(conn, "POST /attention HTTP/1.1\r\nHost: x\r\nAttention: {\"problem\":%q}\r\nContent-Length: 20\r\n\r\n%s", small, x.body)
		resp, err := http.ReadResponse(in, nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.StatusCode)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		require.False(t, resp.Close)
	}
}

// Connections above the limit are answered and closed at once, and a closed connection frees a
// place.
func TestConnectionsAreLimited(t *testing.T) {
	limits := roomy
	limits.Connections = 3
	c := online(t, start(t, cpu(t), limits))
	dial := func() (net.Conn, *bufio.Reader) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		conn.SetDeadline(time.Now().Add(time.Minute))
		return conn, bufio.NewReader(conn)
	}
	status := func(r *bufio.Reader) int {
		resp, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		if resp.StatusCode != http.StatusOK {
			require.Equal(t, "busy: too many connections\n", string(text))
			_, err := r.ReadByte()
			require.ErrorIs(t, err, io.EOF)
		}
		return resp.StatusCode
	}
	var conns []net.Conn
	for range 3 {
		conn, r := dial()
		conns = append(conns, conn)
		fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		require.Equal(t, http.StatusOK, status(r))
	}
	for range 5 {
		_, r := dial()
		require.Equal(t, http.StatusServiceUnavailable, status(r))
	}
	conns[1].Close()
	settle(t, func() bool {
		conn, r := dial()
		defer conn.Close()
		fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		resp, err := http.ReadResponse(r, nil)
		return err == nil && resp.StatusCode == http.StatusOK
	})
}

// A client that sends no request, or stays idle after its answer, is disconnected.
func TestIdleConnectionsEnd(t *testing.T) {
	s := start(t, cpu(t), roomy)
	front := newFront(s)
	for _, limit := range []time.Duration{front.ReadHeaderTimeout, front.ReadTimeout, front.WriteTimeout, front.IdleTimeout} {
		require.Positive(t, limit)
	}
	front.ReadHeaderTimeout, front.IdleTimeout = 20*time.Millisecond, 20*time.Millisecond
	listener, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	go front.Serve(listener)
	t.Cleanup(func() { front.Close() })
	for _, request := range []string{"", "GET /healthz HTTP/1.1\r\nHost: x\r\n", "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"} {
		conn, err := net.Dial("tcp", listener.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(time.Minute))
		_, err = io.WriteString(conn, request)
		require.NoError(t, err)
		_, err = io.ReadAll(conn)
		require.NoError(t, err, "the connection stays")
	}
}

func TestRun(t *testing.T) {
	var text bytes.Buffer
	require.Error(t, run(t.Context(), []string{"--help"}, &text))
	require.Contains(t, text.String(), "-addr")
	require.ErrorContains(t, run(t.Context(), []string{"x"}, &text), `"x"`)
	require.ErrorContains(t, run(t.Context(), []string{"-requests", "0"}, &text), "positive")
	require.ErrorContains(t, run(t.Context(), []string{"-connections", "0"}, &text), "positive")
	require.Error(t, run(t.Context(), []string{"-addr", "nowhere:-1"}, &text))
}

// On shutdown, a server answers the admitted requests and reports that it drains.
func TestServeDrains(t *testing.T) {
	g := newGate()
	s := start(t, g, roomy)
	listener, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, listener, newFront(s), time.Minute) }()
	c := newClient(t, "http://"+listener.Addr().String())
	x := keys(t, 3)
	errs := make(chan error, 1)
	go func() { _, err := c.attend(context.Background(), x.p, time.Minute, x.body); errs <- err }()
	<-g.entered
	end()
	settle(t, func() bool { return s.State().Draining })
	_, status := c.get(t, "/healthz")
	require.Equal(t, http.StatusServiceUnavailable, status)
	_, err = c.attend(t.Context(), x.p, time.Minute, x.body)
	var r *refusal
	require.ErrorAs(t, err, &r)
	require.Equal(t, admission.ErrClosed, r.outcome())
	close(g.open)
	require.NoError(t, <-errs)
	require.NoError(t, <-ended)
}
