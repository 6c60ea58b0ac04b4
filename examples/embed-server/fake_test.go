package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
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

	"github.com/flashkit-go/flashkit/internal/admission"
)

// A fake is an encoder whose vectors depend on the bytes of a text alone. A word is a token.
type fake struct {
	dim, most          int
	perCall, perToken  time.Duration
	open               chan struct{} // nil, or calls wait until it is closed
	entered            chan []string // the texts of calls that wait
	value              float32       // of all results, if it is not 0
	vectorsLess, panic bool
}

// newGate returns a fake whose calls wait.
func newGate() *fake {
	return &fake{dim: 2, open: make(chan struct{}), entered: make(chan []string, 100)}
}

func (f *fake) Tokens(text string) int { return len(strings.Fields(text)) + 2 }
func (f *fake) MaxTokens() int         { return f.most }
func (f *fake) Dim() int               { return f.dim }

func (f *fake) wait(ctx context.Context, texts []string) error {
	if f.panic {
		panic("a defect")
	}
	if f.open != nil {
		f.entered <- texts
		select {
		case <-f.open:
		case <-ctx.Done():
		}
	}
	took := f.perCall
	for _, text := range texts {
		took += time.Duration(f.Tokens(text)) * f.perToken
	}
	if took > 0 {
		time.Sleep(took)
	}
	return ctx.Err()
}

func (f *fake) Embed(ctx context.Context, texts []string) (vectors [][]float32, err error) {
	for _, text := range texts {
		vectors = append(vectors, f.vector(text))
	}
	if f.vectorsLess {
		vectors = vectors[1:]
	}
	return vectors, f.wait(ctx, texts)
}

func (f *fake) vector(text string) []float32 {
	h := fnv.New64a()
	h.Write([]byte(text))
	r := rand.New(rand.NewPCG(h.Sum64(), 0))
	v, squares := make([]float32, f.dim), 0.0
	for i := range v {
		v[i] = float32(r.NormFloat64())
		squares += float64(v[i]) * float64(v[i])
	}
	for i := range v {
		v[i] /= float32(math.Sqrt(squares))
		if f.value != 0 {
			v[i] = f.value
		}
	}
	return v
}

// Score returns the part of the query's words that a text has.
func (f *fake) Score(ctx context.Context, query string, texts []string) (scores []float32, err error) {
	words := strings.Fields(query)
	for _, text := range texts {
		found := 0
		for _, w := range words {
			if strings.Contains(text, w) {
				found++
			}
		}
		scores = append(scores, float32(found)/float32(max(1, len(words))))
	}
	return scores, f.wait(ctx, texts)
}

// known returns a model of a known cost: a millisecond for each token.
func known(e textEncoder, reranks bool) *model {
	id := map[bool]string{false: "small", true: "judge"}[reranks]
	return &model{textEncoder: e, id: id, reranks: reranks, rows: []row{{1000, 1}}}
}

var roomy = Limits{Limits: admission.Limits{Connections: 1000, Requests: 100, Bytes: 1 << 30, Timeout: time.Hour, Short: 20 * time.Millisecond},
	Body: 1 << 20, Texts: 2048, Batch: 1024}

// start runs a server until the test ends, and checks that nothing of it remains.
func start(t testing.TB, e textEncoder, l Limits) *Server {
	s := NewServer(known(e, false), known(e, true), l)
	t.Cleanup(func() {
		soon, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		require.NoError(t, s.Drain(soon))
		require.Equal(t, admission.State{Draining: true}, s.State())
		settle(t, func() bool { return !strings.Contains(stacks(), "admission.(*Queue") })
	})
	return s
}

// settle waits until something has happened. It counts how often it has looked: a clock goes on
// while a machine stops the process.
func settle(t testing.TB, ended func() bool) {
	for looks := 0; !ended(); looks++ {
		time.Sleep(time.Millisecond)
		if looks == 20_000 {
			t.Fatalf("still waiting:\n%s", stacks())
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
	front := admission.NewHTTP(NewHandler(s), s.limits.Limits)
	front.ReadHeaderTimeout, front.ReadTimeout, front.IdleTimeout = time.Hour, time.Hour, time.Hour
	go func() { ended <- s.Serve(ctx, listener, front, time.Minute) }()
	t.Cleanup(func() {
		end()
		require.NoError(t, <-ended)
	})
	return newClient(t, "http://"+listener.Addr().String())
}

// A client asks a server over HTTP.
type client struct {
	url  string
	http http.Client
}

func newClient(t testing.TB, url string) *client {
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	t.Cleanup(transport.CloseIdleConnections)
	return &client{url, http.Client{Transport: transport}}
}

// post sends a body, and returns the status and the answer. A patience of 0 is the server's limit.
func (c *client) post(ctx context.Context, path, body string, patience time.Duration) (int, []byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if patience > 0 {
		r.Header.Set(timeoutHeader, fmt.Sprint(patience.Milliseconds()))
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, text, err
}

// get returns a page and its status.
func (c *client) get(t testing.TB, path string) (string, int) {
	resp, err := c.http.Get(c.url + path)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(text), resp.StatusCode
}

// An embeddings is the answer of /v1/embeddings. An embedding is numbers or base64.
type embeddings struct {
	Object string
	Model  string
	Data   []struct {
		Object    string
		Index     int
		Embedding json.RawMessage
	}
	Usage map[string]int
}

// A scores is the answer of /rerank.
type scores struct {
	Model   string
	Results []struct {
		Index    int
		Score    float32 `json:"relevance_score"`
		Document *struct{ Text string }
	}
	Usage map[string]int
}

// ask sends a request that must succeed, and decodes the answer, which has no other fields.
func ask[A any](t testing.TB, c *client, path, body string) (a A) {
	status, text, err := c.post(t.Context(), path, body, 0)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status, "%s", text)
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&a), "%s", text)
	return a
}

// quote returns texts as a JSON array.
func quote(texts ...string) string {
	text, _ := json.Marshal(texts)
	return string(text)
}
