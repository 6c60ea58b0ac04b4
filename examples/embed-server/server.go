package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/flashkit-go/flashkit/internal/admission"
)

// Limits are a Server's limits. All numbers must be positive.
type Limits struct {
	admission.Limits
	Body       int64 // maximum bytes of a request's body
	Texts      int   // maximum number of texts of a request
	Batch      int   // maximum number of tokens of a call that several requests share
	Truncate   bool  // /v1/embeddings truncates texts that are too long; otherwise it refuses them
	Matryoshka bool  // the model was trained for vectors that are cut short
}

// A Server answers requests for embeddings and for scores. Either model may be nil.
type Server struct {
	*admission.Queue[job, result]
	limits             Limits
	embedder, reranker *model

	started       time.Time
	counts        admission.Counts
	texts, tokens atomic.Uint64 // of all calls
	requests      atomic.Uint64 // of all calls
}

// A job is the texts of a request. The query is the reranker's.
type job struct {
	model  *model
	query  string
	texts  []string
	tokens int
	bytes  int64         // memory of texts and results
	cost   time.Duration // predicted time
}

func (j *job) String() string { return fmt.Sprintf("%d tokens in %d text(s)", j.tokens, len(j.texts)) }

// A result is vectors or scores, one for each text of a job.
type result struct {
	vectors [][]float32
	scores  []float32
}

// NewServer starts a server. Drain ends it.
func NewServer(embedder, reranker *model, l Limits) *Server {
	s := &Server{embedder: embedder, reranker: reranker, limits: l, started: time.Now()}
	s.Queue = admission.New(admission.Work[job, result]{
		Name:   "embed",
		Joins:  s.joins,
		Worker: func() func(context.Context, []job) ([]result, error) { return s.compute },
	}, l.Limits)
	return s
}

// joins reports whether the texts of next may join a call. Scores are for one query, so requests
// for scores do not share calls.
func (s *Server) joins(call []job, next job) bool {
	total := next.tokens
	for _, j := range call {
		total += j.tokens
	}
	return next.model == call[0].model && !next.model.reranks && total <= s.limits.Batch
}

// compute runs one call.
func (s *Server) compute(ctx context.Context, jobs []job) ([]result, error) {
	m, texts, tokens := jobs[0].model, jobs[0].texts, 0
	if len(jobs) > 1 {
		texts = nil
		for _, j := range jobs {
			texts = append(texts, j.texts...)
		}
	}
	for _, j := range jobs {
		tokens += j.tokens
	}
	all, err := m.run(ctx, jobs[0].query, texts)
	if err != nil {
		return nil, err
	}
	if err := all.check(len(texts)); err != nil {
		return nil, fmt.Errorf("%s: %w", m.id, err)
	}
	s.requests.Add(uint64(len(jobs)))
	s.texts.Add(uint64(len(texts)))
	s.tokens.Add(uint64(tokens))
	if m.reranks {
		return []result{all}, nil
	}
	results := make([]result, len(jobs))
	for i, j := range jobs {
		n := len(j.texts)
		results[i].vectors, all.vectors = all.vectors[:n:n], all.vectors[n:]
	}
	return results, nil
}

// check returns an error if JSON cannot represent the results, or if some are missing.
func (r *result) check(texts int) error {
	if len(r.vectors)+len(r.scores) != texts {
		return errors.New("the number of results is wrong")
	}
	infinite := func(v float32) bool { return math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) }
	wrong := slices.ContainsFunc(r.scores, infinite)
	for _, x := range r.vectors {
		wrong = wrong || slices.ContainsFunc(x, infinite)
	}
	if wrong {
		return errors.New("a result is not finite")
	}
	return nil
}

// measure sets the job's tokens, bytes and cost. It returns an error if a text is too long, or if
// ctx ends.
func (s *Server) measure(ctx context.Context, j *job) error {
	m := j.model
	seconds, before := m.fixed, 0
	if m.reranks {
		before = m.tokens(j.query)
	}
	for i, text := range j.texts {
		if ctx.Err() != nil {
			return fmt.Errorf("%w: the time is over", admission.ErrMissed)
		}
		whole := before + m.tokens(text)
		n := m.limit(whole)
		if n < whole && !m.reranks && !s.limits.Truncate {
			return &refusal{param: fmt.Sprintf("input[%d]", i), reason: fmt.Sprintf("has %d tokens, and must have at most %d", whole, n)}
		}
		j.tokens += n
		seconds += m.cost(n).Seconds()
		j.bytes += int64(len(text)) + 64
		if !m.reranks {
			j.bytes += 4 * int64(m.Dim())
		}
	}
	j.bytes += int64(len(j.query))
	j.cost = time.Duration(min(seconds*float64(time.Second), math.MaxInt64/4))
	return nil
}
