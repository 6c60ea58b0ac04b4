package main

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/admission"
)

func TestEmbeddings(t *testing.T) {
	f := &fake{dim: 384}
	c := online(t, start(t, f, roomy))
	input := []string{"one", "two words", "drei \"kurze\" Wörter\u2028\U0001F600"}
	for _, body := range []string{
		`{"model":"small","input":` + quote(input...) + `}`,
		`{"user":"u","encoding_format":"float","dimensions":384,"input":` + quote(input...) + `,"model":"small"}`,
		`{"user":null,"encoding_format":null,"dimensions":null,"input":` + quote(input...) + `,"model":"small"} `,
	} {
		a := ask[embeddings](t, c, "/v1/embeddings", body)
		require.Equal(t, "list", a.Object)
		require.Equal(t, "small", a.Model)
		require.Equal(t, map[string]int{"prompt_tokens": 13, "total_tokens": 13}, a.Usage)
		require.Len(t, a.Data, 3)
		for i, x := range a.Data {
			var v []float32
			require.NoError(t, json.Unmarshal(x.Embedding, &v))
			require.Equal(t, f.vector(input[i]), v, "the same bits")
			require.Equal(t, "embedding", x.Object)
			require.Equal(t, i, x.Index)
		}
	}
	a := ask[embeddings](t, c, "/v1/embeddings", `{"model":"small","input":"one","encoding_format":"base64"}`)
	var text string
	require.NoError(t, json.Unmarshal(a.Data[0].Embedding, &text))
	raw, err := base64.StdEncoding.DecodeString(text)
	require.NoError(t, err)
	v := make([]float32, 384)
	_, err = binary.Decode(raw, binary.LittleEndian, v)
	require.NoError(t, err)
	require.Len(t, raw, 4*len(v))
	require.Equal(t, f.vector("one"), v)
}

// Fewer dimensions are the first ones, normalized, as OpenAI documents.
func TestDimensions(t *testing.T) {
	f := &fake{dim: 100}
	limits := roomy
	limits.Matryoshka = true
	c := online(t, start(t, f, limits))
	a := ask[embeddings](t, c, "/v1/embeddings", `{"model":"small","input":["one"],"dimensions":7}`)
	var v []float32
	require.NoError(t, json.Unmarshal(a.Data[0].Embedding, &v))
	require.Len(t, v, 7)
	whole, squares := f.vector("one"), 0.0
	for i := range v {
		squares += float64(v[i]) * float64(v[i])
		require.InDelta(t, whole[i]/whole[0], v[i]/v[0], 1e-5)
	}
	require.InDelta(t, 1, squares, 1e-5)
	require.Positive(t, v[0]*whole[0])
	for body, words := range map[string]string{`0`: "must be 1 to 100", `101`: "must be 1 to 100", `-1`: "must be 1 to 100", `"7"`: "must be an integer, not string"} {
		status, text, err := c.post(t.Context(), "/v1/embeddings", `{"model":"small","input":["one"],"dimensions":`+body+`}`, 0)
		require.NoError(t, err)
		require.Equal(t, 400, status)
		require.Contains(t, string(text), words)
	}
}

func TestRerank(t *testing.T) {
	c := online(t, start(t, &fake{}, roomy))
	documents := `["a dog",{"text":"a black cat"},"","the black cat sleeps","a cat"]`
	for _, path := range []string{"/rerank", "/v1/rerank", "/v2/rerank"} {
		a := ask[scores](t, c, path, `{"query":"black cat","documents":`+documents+`}`)
		require.Equal(t, "judge", a.Model)
		var order []int
		for _, r := range a.Results {
			order = append(order, r.Index)
			require.Equal(t, []float32{0, 1, 0, 1, 0.5}[r.Index], r.Score)
			require.Nil(t, r.Document)
		}
		require.Equal(t, []int{1, 3, 4, 0, 2}, order, "equal scores keep their order")
		require.Equal(t, map[string]int{"total_tokens": 5*4 + 21}, a.Usage)
	}
	a := ask[scores](t, c, "/rerank", `{"model":"judge","query":"black cat","documents":`+documents+`,"top_n":2,"return_documents":true}`)
	require.Len(t, a.Results, 2)
	require.Equal(t, "a black cat", a.Results[0].Document.Text)
	require.Equal(t, "the black cat sleeps", a.Results[1].Document.Text)
	require.Len(t, ask[scores](t, c, "/rerank", `{"query":"x","documents":["y"],"top_n":9}`).Results, 1)
}

func TestPages(t *testing.T) {
	c := online(t, start(t, &fake{dim: 1}, roomy))
	ask[embeddings](t, c, "/v1/embeddings", `{"model":"small","input":["a b","c"]}`)
	text, status := c.get(t, "/v1/models")
	require.Equal(t, http.StatusOK, status)
	require.Regexp(t, `^{"data":\[{"id":"small","object":"model","created":\d+,"owned_by":"local"},{"id":"judge",.*"object":"list"}\n$`, text)
	text, status = c.get(t, "/healthz")
	require.Equal(t, "ok\n200", fmt.Sprint(text, status))
	text, status = c.get(t, "/metrics")
	require.Equal(t, http.StatusOK, status)
	for _, line := range []string{`embed_requests_total{outcome="ok"} 1`, `embed_answer_seconds_bucket{le="+Inf"} 1`, "embed_admitted 0",
		"embed_call_requests_total 1", "embed_call_texts_total 2", "embed_call_tokens_total 7"} {
		require.Contains(t, text, "\n"+line+"\n")
	}
	text, status = c.get(t, "/v1/embeddings")
	require.Equal(t, http.StatusNotFound, status)
	require.Contains(t, text, "GET /v1/embeddings: there are POST /v1/embeddings")
}

const (
	onEmbeddings = "/v1/embeddings"
	onRerank     = "/rerank"
)

// hostile requests, and the status, the field and the words that answer them.
var hostile = []struct {
	name, path, body, header string
	status                   int
	param, words             string
}{
	{"tokens", onEmbeddings, `{"model":"small","input":[1,2]}`, "", 400, "input[0]", "arrays of tokens are not supported"},
	{"token arrays", onEmbeddings, `{"model":"small","input":["a",[1,2]]}`, "", 400, "input[1]", "arrays of tokens are not supported"},
	{"null in input", onEmbeddings, `{"model":"small","input":["a",null]}`, "", 400, "input[1]", "must be a string"},
	{"object in input", onEmbeddings, `{"model":"small","input":[{"text":"a"}]}`, "", 400, "input[0]", "must be a string"},
	{"number", onEmbeddings, `{"model":"small","input":7}`, "", 400, "input", "must be an array of strings, or a string"},
	{"null", onEmbeddings, `{"model":"small","input":null}`, "", 400, "input", "must be an array of strings, or a string"},
	{"empty text", onEmbeddings, `{"model":"small","input":""}`, "", 400, "input[0]", "must not be empty"},
	{"an empty text", onEmbeddings, `{"model":"small","input":["a",""]}`, "", 400, "input[1]", "must not be empty"},
	{"no text", onEmbeddings, `{"model":"small","input":[]}`, "", 400, "input", "at least one"},
	{"many texts", onEmbeddings, `{"model":"small","input":["a","b","c","d","e"]}`, "", 400, "input", "more than 4 texts"},
	{"long text", onEmbeddings, `{"model":"small","input":["a","` + strings.Repeat("x ", 9) + `"]}`, "", 400, "input[1]", "has 11 tokens, and must have at most 10"},
	{"no input", onEmbeddings, `{"model":"small"}`, "", 400, "input", "is missing"},
	{"no model", onEmbeddings, `{"input":"a"}`, "", 400, "model", "is missing; this server has small"},
	{"other model", onEmbeddings, `{"input":"a","model":"judge"}`, "", 404, "model", `\"judge\": this server has \"small\"`},
	{"model of another type", onEmbeddings, `{"input":"a","model":1}`, "", 400, "model", "must be a string, not number"},
	{"format", onEmbeddings, `{"input":"a","model":"small","encoding_format":"int8"}`, "", 400, "encoding_format", "must be float or base64"},
	{"dimensions", onEmbeddings, `{"input":"a","model":"small","dimensions":1}`, "", 400, "dimensions", "without -matryoshka"},
	{"part of a dimension", onEmbeddings, `{"input":"a","model":"small","dimensions":1.5}`, "", 400, "dimensions", "must be an integer, not number 1.5"},
	{"unknown", onEmbeddings, `{"input":"a","model":"small","input_type":"query"}`, "", 400, "input_type", "is not supported"},
	{"other case", onEmbeddings, `{"Input":"a","model":"small"}`, "", 400, "Input", "is not supported"},
	{"twice", onEmbeddings, `{"input":"a","model":"small","input":"b"}`, "", 400, "input", "appears twice"},
	{"nothing", onEmbeddings, ``, "", 400, "", "no JSON: EOF"},
	{"no object", onEmbeddings, `["a"]`, "", 400, "", "must be a JSON object"},
	{"no JSON", onEmbeddings, `input=a`, "", 400, "", "no JSON: invalid character 'i'"},
	{"half a JSON", onEmbeddings, `{"model":"small","input":["a"`, "", 400, "input", "no JSON"},
	{"cut in a key", onEmbeddings, `{"model":"small","inp`, "", 400, "", "no JSON"},
	{"open object", onEmbeddings, `{"model":"small","input":"a"`, "", 400, "", "no JSON"},
	{"two JSONs", onEmbeddings, `{"model":"small","input":"a"}{}`, "", 400, "", "something after the JSON object"},
	{"no UTF-8", onEmbeddings, "{\"model\":\"small\",\"input\":\"\xff\"}", "", 400, "", "the body is not UTF-8"},
	{"control characters", onEmbeddings, `{"\u001b[31m\n":1}`, "", 400, " [31m ", "is not supported"},
	{"long key", onEmbeddings, `{"` + strings.Repeat("x", 9000) + `":1}`, "", 400, strings.Repeat("x", 300) + "...", "..."},
	{"depth", onEmbeddings, `{"input":` + strings.Repeat("[", 20000), "", 400, "input", "exceeded max depth"},
	{"large body", onEmbeddings, `{"input":"` + strings.Repeat("x", 1<<20), "", 413, "", "a body may have 65536 bytes"},
	{"negative time", onEmbeddings, `{}`, timeoutHeader + ": -1", 400, timeoutHeader, "-1: must be 1 to 3600000"},
	{"long time", onEmbeddings, `{}`, timeoutHeader + ": 9223372036854775808", 400, timeoutHeader, "must be 1 to 3600000"},
	{"compressed", onEmbeddings, `{}`, "Content-Encoding: gzip", 400, "Content-Encoding", "gzip: must be absent"},
	{"no query", onRerank, `{"documents":["a"]}`, "", 400, "query", "is missing"},
	{"empty query", onRerank, `{"query":"","documents":["a"]}`, "", 400, "query", "must not be empty"},
	{"query of another type", onRerank, `{"query":["a"],"documents":["a"]}`, "", 400, "query", "must be a string, not array"},
	{"no documents", onRerank, `{"query":"a"}`, "", 400, "documents", "is missing"},
	{"zero documents", onRerank, `{"query":"a","documents":[]}`, "", 400, "documents", "at least one"},
	{"document alone", onRerank, `{"query":"a","documents":"b"}`, "", 400, "documents", "must be an array of strings"},
	{"document of another type", onRerank, `{"query":"a","documents":["b",1]}`, "", 400, "documents[1]", "must be a string, or an object with the key text"},
	{"text of another type", onRerank, `{"query":"a","documents":["b",{"text":1}]}`, "", 400, "documents[1].text", "must be a string, not number"},
	{"empty document object", onRerank, `{"query":"a","documents":[{}]}`, "", 400, "documents[0].text", "is missing"},
	{"unknown document", onRerank, `{"query":"a","documents":[{"image":"b"}]}`, "", 400, "documents[0].image", "is not supported"},
	{"many documents", onRerank, `{"query":"a","documents":["a","b","c","d","e"]}`, "", 400, "documents", "more than 4 texts"},
	{"top of none", onRerank, `{"query":"a","documents":["b"],"top_n":0}`, "", 400, "top_n", "0: must be at least 1"},
	{"other reranker", onRerank, `{"query":"a","documents":["b"],"model":"small"}`, "", 404, "model", `this server has \"judge\"`},
}

// Each request gets one line of JSON that names the field, and does not harm the server.
func TestHostileRequests(t *testing.T) {
	limits := roomy
	limits.Body, limits.Texts = 64<<10, 4
	f := &fake{dim: 2, most: 10}
	c := online(t, start(t, f, limits))
	for _, h := range hostile {
		t.Run(h.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			r, err := http.NewRequest(http.MethodPost, c.url+h.path, strings.NewReader(h.body))
			require.NoError(t, err)
			if key, value, found := strings.Cut(h.header, ": "); found {
				r.Header.Set(key, value)
			}
			resp, err := c.http.Do(r)
			require.NoError(t, err)
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			runtime.ReadMemStats(&after)
			require.Equal(t, h.status, resp.StatusCode, "%s", text)
			require.Equal(t, "application/json", resp.Header.Get("Content-Type"))
			require.NotRegexp(t, `[[:cntrl:]]`, strings.TrimSuffix(string(text), "\n"))
			require.Contains(t, string(text), h.words)
			var e failure
			require.NoError(t, json.Unmarshal(text, &e))
			require.Equal(t, "invalid_request_error", e.Error.Type)
			param := ""
			if e.Error.Param != nil {
				param = *e.Error.Param
			}
			require.Equal(t, h.param, param)
			require.LessOrEqual(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20))
		})
	}
	require.Len(t, ask[embeddings](t, c, onEmbeddings, `{"model":"small","input":"a"}`).Data, 1)
}

// Texts that are too long are truncated if the server's flag, or a reranker, says so.
func TestLongTexts(t *testing.T) {
	limits := roomy
	limits.Truncate = true
	c := online(t, start(t, &fake{dim: 2, most: 10}, limits))
	long := strings.Repeat("x ", 100)
	require.Equal(t, 13, ask[embeddings](t, c, onEmbeddings, `{"model":"small","input":`+quote("a", long)+`}`).Usage["total_tokens"])
	require.Equal(t, 16, ask[scores](t, c, onRerank, `{"query":"a","documents":`+quote("a", long)+`}`).Usage["total_tokens"])
}

// Requests that wait share a call, up to its limit of tokens. Each gets its own vectors.
func TestRequestsShareACall(t *testing.T) {
	limits := roomy
	limits.Batch = 12
	g := newGate()
	s := start(t, g, limits)
	c := online(t, s)
	var clients sync.WaitGroup
	send := func(path, body string, check func(text []byte)) {
		clients.Go(func() {
			status, text, err := c.post(t.Context(), path, body, 0)
			if err != nil || status != http.StatusOK {
				t.Error(status, err, string(text))
				return
			}
			check(text)
		})
	}
	send(onEmbeddings, `{"model":"small","input":"first"}`, func([]byte) {})
	require.Equal(t, []string{"first"}, <-g.entered)
	for i := range 5 {
		texts := []string{fmt.Sprint("a", i), fmt.Sprint("b", i)}
		send(onEmbeddings, `{"model":"small","input":`+quote(texts...)+`}`, func(text []byte) {
			var a embeddings
			if err := json.Unmarshal(text, &a); err != nil {
				t.Error(err)
			}
			for j, x := range a.Data {
				var v []float32
				if err := json.Unmarshal(x.Embedding, &v); err != nil || fmt.Sprint(v) != fmt.Sprint(g.vector(texts[j])) {
					t.Error(v, err)
				}
			}
		})
		send(onRerank, `{"query":"q","documents":`+quote(texts...)+`}`, func([]byte) {})
		settle(t, func() bool { return s.State().Ready == 2*i+2 })
	}
	close(g.open)
	clients.Wait()
	sizes := map[int]int{}
	for len(g.entered) > 0 {
		sizes[len(<-g.entered)]++
	}
	require.Equal(t, map[int]int{4: 2, 2: 1 + 5}, sizes, "12 tokens are two requests; scores are alone")
}

// A request that cannot be answered in time is rejected, with a reason to try another server.
func TestRefusals(t *testing.T) {
	limits := roomy
	limits.Requests, limits.Bytes, limits.Body = 3, 32<<10, 8<<10
	g := newGate()
	s := start(t, g, limits)
	c := online(t, s)
	refused := func(body string, patience time.Duration, status int, code string) {
		got, text, err := c.post(t.Context(), onEmbeddings, body, patience)
		require.NoError(t, err)
		require.Equal(t, status, got, "%s", text)
		require.Contains(t, string(text), fmt.Sprintf(`"type":"server_error","param":null,"code":%q`, code))
	}
	words := func(n int) string {
		return `{"model":"small","input":"` + strings.TrimSpace(strings.Repeat("x ", n)) + `"}`
	}
	refused(words(900), 500*time.Millisecond, 504, "late")
	answered := make(chan int, 3)
	send := func(body string, seconds int) {
		go func() {
			status, _, _ := c.post(context.Background(), onEmbeddings, body, time.Duration(seconds)*time.Second)
			answered <- status
		}()
	}
	send(words(1000), 3600)
	<-g.entered
	refused(words(1000), 2500*time.Millisecond, 504, "late") // behind the running one
	send(words(2000), 3600)
	settle(t, func() bool { return s.State().Ready == 1 })
	refused(words(4000), time.Hour, 503, "busy") // of bytes
	send(words(1000), 3500)
	settle(t, func() bool { return s.State().Ready == 2 })
	refused(words(1), time.Hour, 503, "busy") // of requests
	close(g.open)
	for range 3 {
		require.Equal(t, http.StatusOK, <-answered)
	}
}

// A defect in a model fails one call.
func TestFailures(t *testing.T) {
	log.SetOutput(io.Discard)
	defer log.SetOutput(os.Stderr)
	for name, f := range map[string]*fake{"NaN": {dim: 2, value: float32(math.NaN())}, "Inf": {dim: 2, value: float32(math.Inf(1))},
		"panic": {dim: 2, panic: true}, "vectors are missing": {dim: 2, vectorsLess: true}} {
		t.Run(name, func(t *testing.T) {
			c := online(t, start(t, f, roomy))
			for range 2 {
				status, text, err := c.post(t.Context(), onEmbeddings, `{"model":"small","input":["a","b"]}`, 0)
				require.NoError(t, err)
				require.Equal(t, http.StatusInternalServerError, status)
				require.Contains(t, string(text), `"code":"failed"`)
			}
		})
	}
}

// The path of a missing model says which flag is missing.
func TestMissingModel(t *testing.T) {
	s := NewServer(nil, known(&fake{}, true), roomy)
	c := online(t, s)
	status, text, err := c.post(t.Context(), onEmbeddings, `{"model":"small","input":"a"}`, 0)
	require.NoError(t, err)
	require.Equal(t, http.StatusNotFound, status)
	require.Contains(t, string(text), "this server runs without -model")
	ask[scores](t, c, onRerank, `{"query":"a","documents":["b"]}`)
}

// A slow client is cut at its deadline, and the request of a client that leaves ends.
func TestSlowClients(t *testing.T) {
	g := newGate()
	s := start(t, g, roomy)
	c := online(t, s)
	hanging, hang := io.Pipe()
	defer hang.Close()
	r, err := http.NewRequest(http.MethodPost, c.url+onEmbeddings, hanging)
	require.NoError(t, err)
	r.ContentLength = 100
	r.Header.Set(timeoutHeader, "50")
	resp, err := c.http.Do(r)
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, http.StatusGatewayTimeout, resp.StatusCode)

	for _, sent := range []string{onEmbeddings, onRerank} {
		ctx, leave := context.WithCancel(t.Context())
		errs := make(chan error, 1)
		go func() {
			body := map[string]string{onEmbeddings: `{"model":"small","input":"a"}`, onRerank: `{"query":"a","documents":["b"]}`}[sent]
			_, _, err := c.post(ctx, sent, body, 0)
			errs <- err
		}()
		<-g.entered
		leave()
		require.ErrorIs(t, <-errs, context.Canceled)
		settle(t, func() bool { return s.State().Admitted == 0 })
	}
}

// A body of unknown length is read up to the limit, and one that is refused may stay away.
func TestBodies(t *testing.T) {
	limits := roomy
	limits.Body = 1000
	c := online(t, start(t, &fake{dim: 1}, limits))
	head := "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
	const chunked = "Transfer-Encoding: chunked\r\n\r\n"
	body := `{"model":"small","input":"a"}`
	part := fmt.Sprintf("%x\r\n%s\r\n", len(body), body)
	blank := "3e8\r\n" + strings.Repeat(" ", 1000) + "\r\n"
	for request, want := range map[string]string{
		head + chunked + part + "0\r\n\r\n":                               "200",
		head + chunked + blank + part + "0\r\n\r\n":                       "413",
		head + chunked + part + "zz\r\n":                                  "400",
		head + "Content-Length: 1001\r\n\r\n":                             "413",
		head + "Content-Length: 100000000000\r\n\r\n":                     "413",
		head + "Content-Length: -1\r\n\r\n":                               "400",
		head + "X-Timeout-Ms: 0\r\nContent-Length: 9\r\n\r\n":             "400",
		"PUT /v1/models HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n": "404",
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
		require.NoError(t, err)
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(time.Minute))
		_, err = io.WriteString(conn, request)
		require.NoError(t, err)
		all, err := io.ReadAll(conn)
		require.NoError(t, err, "the connection stays")
		require.Contains(t, strings.SplitN(string(all), "\r\n", 2)[0], "HTTP/1.1 "+want, "%.200s", request)
	}
}

// On shutdown, a server answers the admitted requests and reports that it drains.
func TestServeDrains(t *testing.T) {
	g := newGate()
	s := start(t, g, roomy)
	listener, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Serve(ctx, listener, admission.NewHTTP(NewHandler(s), s.limits.Limits), time.Minute)
	}()
	c := newClient(t, "http://"+listener.Addr().String())
	statuses := make(chan int, 1)
	go func() {
		status, _, _ := c.post(context.Background(), onEmbeddings, `{"model":"small","input":"a"}`, 0)
		statuses <- status
	}()
	<-g.entered
	end()
	settle(t, func() bool { return s.State().Draining })
	_, status := c.get(t, "/healthz")
	require.Equal(t, http.StatusServiceUnavailable, status)
	status, text, err := c.post(t.Context(), onEmbeddings, `{"model":"small","input":"a"}`, 0)
	require.NoError(t, err)
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, string(text), `"code":"closed"`)
	close(g.open)
	require.Equal(t, http.StatusOK, <-statuses)
	require.NoError(t, <-ended)
}
