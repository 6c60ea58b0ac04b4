package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/flashkit-go/flashkit/internal/admission"
)

// timeoutHeader is the HTTP header with the milliseconds from a request's arrival to its answer.
// Without it, the server's limit counts.
const timeoutHeader = "X-Timeout-Ms"

// bodyTime is the longest time in which a body may arrive.
const bodyTime = 10 * time.Second

// Bytes of memory for each byte of a body until it is parsed: the body, its buffer, the texts.
const perBodyByte = 4

// NewHandler returns the handler of all paths.
func NewHandler(s *Server) http.Handler {
	mux := s.NewMux(s.metrics)
	mux.HandleFunc("POST /v1/embeddings", s.post(s.embedder, "-model", s.parseEmbeddings))
	for _, path := range []string{"/rerank", "/v1/rerank", "/v2/rerank"} {
		mux.HandleFunc("POST "+path, s.post(s.reranker, "-reranker", s.parseRerank))
	}
	mux.HandleFunc("GET /v1/models", s.models)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, &refusal{reason: r.Method + " " + r.URL.Path + ": there are POST /v1/embeddings, POST /rerank, GET /v1/models, " +
			"GET /healthz and GET /metrics", status: http.StatusNotFound})
	})
	return mux
}

// An order is a parsed request: its job, and a function that writes the answer.
type order struct {
	job
	write func(w http.ResponseWriter, r result) error
}

// post returns a handler of requests to a model. The flag sets the model.
func (s *Server) post(m *model, flag string, parse func([]byte) (*order, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		err := fmt.Errorf("%w", &refusal{reason: "this server runs without " + flag, status: http.StatusNotFound})
		if m != nil {
			err = s.answer(w, r, start, parse)
		}
		if err != nil {
			fail(w, err)
		}
		s.counts.Ended(admission.Of(err), time.Since(start))
	}
}

// answer answers a request. Before admission of its bytes it does not read the body.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, start time.Time, parse func([]byte) (*order, error)) error {
	timeout, err := s.timeout(r)
	if err != nil {
		return err
	}
	size := r.ContentLength
	switch encoding := r.Header.Get("Content-Encoding"); {
	case encoding != "":
		return bad("Content-Encoding", "%s: must be absent", encoding)
	case size > s.limits.Body:
		return fmt.Errorf("%w: Content-Length: %d: a body may have %d bytes", admission.ErrTooLarge, size, s.limits.Body)
	case size < 0:
		size = s.limits.Body
	}
	deadline := start.Add(timeout)
	ctx, cancel := context.WithDeadline(r.Context(), deadline)
	defer cancel()
	t, err := s.Reserve(ctx, perBodyByte*size)
	if err != nil {
		return err
	}
	defer t.Close()
	body, err := s.read(w, r, deadline)
	if err != nil {
		return err
	}
	o, err := parse(body)
	if err != nil {
		return err
	}
	body = nil // so that its memory is free while the request waits
	if err := s.measure(ctx, &o.job); err != nil {
		return err
	}
	if err := t.Enter(admission.Request{What: &o.job, Bytes: o.bytes, Cost: o.cost}); err != nil {
		return err
	}
	result, err := t.Answer(o.job)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	if err := o.write(w, result); err != nil {
		return fmt.Errorf("%w: %w", admission.ErrGone, err)
	}
	return nil
}

func (s *Server) timeout(r *http.Request) (time.Duration, error) {
	limit := s.limits.Timeout
	text := r.Header.Get(timeoutHeader)
	if text == "" {
		return limit, nil
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms < 1 || ms > limit.Milliseconds() {
		return 0, bad(timeoutHeader, "%s: must be 1 to %d", text, limit.Milliseconds())
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// read reads the body. Its memory grows with the bytes that have arrived. A slow body ends at the
// request's deadline or after bodyTime, between two parts. If the client sends nothing, the read
// deadline ends the reading a second later. net/http then ends the connection, and the client may
// not see the answer.
func (s *Server) read(w http.ResponseWriter, r *http.Request, deadline time.Time) ([]byte, error) {
	const part = 16 << 10
	if most := time.Now().Add(bodyTime); most.Before(deadline) {
		deadline = most
	}
	rc := http.NewResponseController(w)
	rc.SetReadDeadline(deadline.Add(time.Second))
	slow := fmt.Errorf("%w: the body takes too long", admission.ErrMissed)
	body := http.MaxBytesReader(w, r.Body, s.limits.Body)
	var text bytes.Buffer
	for {
		_, err := io.CopyN(&text, body, part)
		var large *http.MaxBytesError
		switch {
		case err == io.EOF:
			w.Header().Del("Connection")
			rc.SetReadDeadline(time.Time{}) // the read deadline would end the connection while the request waits
			return text.Bytes(), nil
		case errors.As(err, &large):
			return nil, fmt.Errorf("%w: a body may have %d bytes", admission.ErrTooLarge, s.limits.Body)
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, slow
		case err != nil:
			return nil, bad("", "the body ended early: %v", err)
		case time.Now().After(deadline):
			return nil, slow
		}
	}
}

// A failure is the JSON of an error, as OpenAI shapes it. Code is the outcome.
type failure struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	} `json:"error"`
}

// fail writes an error.
func fail(w http.ResponseWriter, err error) {
	o := admission.Of(err)
	status := admission.Statuses[o]
	var f failure
	f.Error.Message, f.Error.Code, f.Error.Type = admission.Line(err), string(o), "server_error"
	var r *refusal
	if errors.As(err, &r) {
		if r.param != "" {
			param := admission.Line(errors.New(r.param))
			f.Error.Param = &param
		}
		status = max(status, r.status)
	}
	switch o {
	case admission.ErrGone:
		return // the client ended the request
	case admission.ErrBad, admission.ErrTooLarge:
		f.Error.Type = "invalid_request_error"
	case admission.ErrBusy, admission.ErrClosed:
		w.Header().Set("Retry-After", "1")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(f)
}

// models answers GET /v1/models.
func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	type entry struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		Owner   string `json:"owned_by"`
	}
	list := []entry{}
	for _, m := range []*model{s.embedder, s.reranker} {
		if m != nil {
			list = append(list, entry{m.id, "model", s.started.Unix(), "local"})
		}
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(map[string]any{"object": "list", "data": list})
}

func (s *Server) metrics(w io.Writer) {
	s.WriteMetrics(w, &s.counts)
	count := func(name, help string, n uint64) {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %[1]s counter\n%[1]s %[3]d\n", name, help, n)
	}
	count("embed_call_requests_total", "Requests of all calls.", s.requests.Load())
	count("embed_call_texts_total", "Texts of all calls.", s.texts.Load())
	count("embed_call_tokens_total", "Tokens of all calls.", s.tokens.Load())
}
