package encoder

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync/atomic"

	"github.com/flashkit-go/flashkit/internal/workers"
	"github.com/flashkit-go/flashkit/nn/tokenizer"
)

// A call has the memory of one call of an Encoder. Later calls reuse it.
type call struct {
	encoder *Encoder
	step    step
	batch   batch
	slots   []slot // memory of each worker that tokenizes
	spans   []span // the tokens of each text
	order   []int  // texts by number of tokens, the longest first

	// The state of the tokenization in progress:
	ctx    context.Context
	texts  []string
	before string // the query if pairs is true, else a prompt
	pairs  bool
	next   atomic.Int64
	broken atomic.Int64 // 1 + the index of a text that is too long
}

type slot struct {
	encoding   tokenizer.Encoding
	ids, types []int32
}

// A span is a text's tokens: n tokens of a slot from an index. The text had the given number of
// tokens before truncation, or 0 if it ends in padding that must not be cut.
type span struct{ slot, from, n, tokens int }

// maxCalls is the maximum number of idle calls whose memory an Encoder keeps.
const maxCalls = 16

func (e *Encoder) take() *call {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.free); n > 0 {
		c := e.free[n-1]
		e.free = e.free[:n-1]
		return c
	}
	return &call{encoder: e, step: step{model: e.model, gpu: e.gpu, engine: e.engine, pool: &e.pool}}
}

func (e *Encoder) give(c *call) {
	c.ctx, c.texts, c.before = nil, nil, ""
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.free) < maxCalls {
		e.free = append(e.free, c)
	}
}

// textsAtATime is the number of texts that a worker tokenizes before it takes the next ones.
const textsAtATime = 8

// A tokenizing is a call with the method that workers call.
type tokenizing call

// Work tokenizes texts on one worker.
func (t *tokenizing) Work(number int) {
	c := (*call)(t)
	s := &c.slots[number]
	for c.ctx.Err() == nil {
		to := int(c.next.Add(textsAtATime))
		for i := to - textsAtATime; i < min(to, len(c.texts)); i++ {
			c.tokenize(s, number, i)
		}
		if to >= len(c.texts) {
			return
		}
	}
}

func (c *call) tokenize(s *slot, number, i int) {
	e := c.encoder
	most := e.most
	switch {
	case c.pairs:
		e.tokenizer.EncodePair(&s.encoding, most, c.before, c.texts[i])
	case c.before != "":
		e.tokenizer.Encode(&s.encoding, most, c.before+c.texts[i])
	default:
		e.tokenizer.Encode(&s.encoding, most, c.texts[i])
	}
	x := &s.encoding
	padded, tokens := false, x.Tokens
	if e.head != nil && e.head.pad >= 0 {
		for n := len(x.IDs) - 1; n > 0 && x.IDs[n] == e.head.pad; n-- {
			x.IDs, x.Types, padded = x.IDs[:n], x.Types[:n], e.head.seen
		}
	}
	if padded {
		tokens = 0
	}
	if padded || most > 0 && x.Tokens > most && e.options.Overflow == Refuse {
		for old := c.broken.Load(); old == 0 || old > int64(i)+1; old = c.broken.Load() {
			if c.broken.CompareAndSwap(old, int64(i)+1) {
				break
			}
		}
	}
	c.spans[i] = span{number, len(s.ids), len(x.IDs), tokens}
	s.ids = append(s.ids, x.IDs...)
	if e.model.shape().types > 1 {
		s.types = append(s.types, x.Types...)
	}
}

// prepare tokenizes texts, and packs them into a batch in the order of c.order. If pairs is true,
// a sequence is the pair of a query and a text, else a prompt followed by a text.
func (c *call) prepare(ctx context.Context, before string, pairs bool, texts []string) error {
	e := c.encoder
	c.ctx, c.texts, c.before, c.pairs = ctx, texts, before, pairs
	c.next.Store(0)
	c.broken.Store(0)
	c.spans = slices.Grow(c.spans[:0], len(texts))[:len(texts)]
	most := min(workers.Most(e.options.Workers), (len(texts)+textsAtATime-1)/textsAtATime)
	for len(c.slots) < most {
		c.slots = append(c.slots, slot{})
	}
	for i := range c.slots {
		c.slots[i].ids, c.slots[i].types = c.slots[i].ids[:0], c.slots[i].types[:0]
	}
	if most > 1 {
		e.pool.Run((*tokenizing)(c), most-1)
	} else if most == 1 {
		(*tokenizing)(c).Work(0)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if i := c.broken.Load(); i > 0 {
		field, tokens := fmt.Sprintf("texts[%d]", i-1), c.spans[i-1].tokens
		if tokens == 0 {
			return problem(field, "padding tokens at the end", "must not be there, because the tokens before them see them")
		}
		return problem(field, fmt.Sprintf("%d tokens", tokens), "must have at most %d", e.most)
	}
	return c.pack()
}

// pack copies the tokens of all texts into the batch. Texts of equal length keep their order.
func (c *call) pack() error {
	c.order = c.order[:0]
	rows := 0
	for i, s := range c.spans {
		c.order = append(c.order, i)
		if rows += s.n; rows > math.MaxInt32 {
			return problem("texts", "too many", "must have at most %d tokens in total", math.MaxInt32)
		}
	}
	slices.SortFunc(c.order, func(a, b int) int {
		return cmp.Or(cmp.Compare(c.spans[b].n, c.spans[a].n), cmp.Compare(a, b))
	})
	b := &c.batch
	b.ids, b.starts, b.types = b.ids[:0], append(b.starts[:0], 0), b.types[:0]
	typed := c.encoder.model.shape().types > 1
	for _, i := range c.order {
		s := c.spans[i]
		b.ids = append(b.ids, c.slots[s.slot].ids[s.from:][:s.n]...)
		if typed {
			b.types = append(b.types, c.slots[s.slot].types[s.from:][:s.n]...)
		}
		b.starts = append(b.starts, int32(len(b.ids)))
	}
	return nil
}

// run computes the tail's results for the batch. Row i of the result belongs to text c.order[i].
// Pooling excludes skip tokens at the start of each sequence.
func (c *call) run(ctx context.Context, t tail, skip int) ([]float32, error) {
	e := c.encoder
	b := c.batch
	b.skip = skip
	if e.model.shape().types <= 1 {
		b.types = nil
	}
	rows := len(b.starts) - 1
	if t.perToken() {
		rows = len(b.ids)
	}
	out := make([]float32, rows*t.width())
	c.step.progress = e.options.Progress
	err := c.step.run(ctx, out, b, t, e.options.Workers)
	return out, err
}

// Embed returns the vector of each text, of Dim numbers. The vectors share one block of memory. An
// error of the context, and an error of the Dispatcher, end the call.
func (e *Encoder) Embed(ctx context.Context, texts []string) ([][]float32, error) {
	return e.embed(ctx, e.prompt, texts)
}

// EmbedPrompt is Embed with a prompt of the model, such as "query" or "document". The files of the
// model name its prompts; an error lists them.
func (e *Encoder) EmbedPrompt(ctx context.Context, name string, texts []string) ([][]float32, error) {
	p, err := e.promptOf("prompt", name)
	if err != nil {
		return nil, err
	}
	return e.embed(ctx, p, texts)
}

func (e *Encoder) embed(ctx context.Context, p prompt, texts []string) ([][]float32, error) {
	if e.vectors == nil {
		return nil, errNoVectors()
	}
	c := e.take()
	defer e.give(c)
	if err := c.prepare(ctx, p.text, false, texts); err != nil {
		return nil, err
	}
	return c.vectors(ctx, p.skip)
}

// EmbedTokens returns the vector of each sequence of token ids, for programs with a tokenizer of
// their own. The ids include special tokens and a prompt. A sequence has at most MaxTokens tokens.
func (e *Encoder) EmbedTokens(ctx context.Context, sequences [][]int32) ([][]float32, error) {
	if e.vectors == nil {
		return nil, errNoVectors()
	}
	c := e.take()
	defer e.give(c)
	if len(c.slots) == 0 {
		c.slots = append(c.slots, slot{})
	}
	s := &c.slots[0]
	s.ids, s.types, c.spans = s.ids[:0], s.types[:0], c.spans[:0]
	for i, ids := range sequences {
		if e.most > 0 && len(ids) > e.most {
			return nil, problem(fmt.Sprintf("sequences[%d]", i), fmt.Sprintf("%d tokens", len(ids)), "must have at most %d", e.most)
		}
		for j, id := range ids {
			if id < 0 || int(id) >= e.model.shape().vocab {
				return nil, problem(fmt.Sprintf("sequences[%d][%d]", i, j), id, "must be from 0 to %d", e.model.shape().vocab-1)
			}
		}
		c.spans = append(c.spans, span{0, len(s.ids), len(ids), len(ids)})
		s.ids = append(s.ids, ids...)
	}
	s.types = append(s.types, make([]int32, len(s.ids))...)
	if err := c.pack(); err != nil {
		return nil, err
	}
	return c.vectors(ctx, 0)
}

// vectors returns the vectors of the batch, in the order of the texts.
func (c *call) vectors(ctx context.Context, skip int) ([][]float32, error) {
	out, err := c.run(ctx, c.encoder.vectors, skip)
	if err != nil {
		return nil, err
	}
	dim := c.encoder.Dim()
	vectors := make([][]float32, len(c.order))
	for row, i := range c.order {
		vectors[i] = out[row*dim:][:dim:dim]
	}
	return vectors, nil
}

func errNoVectors() error {
	return problem("Encoder", "no Pooling", "must have a module Pooling: the model computes scores alone")
}

// A chunk of texts of EmbedSeq ends at either of these limits.
const (
	chunkTexts = 1024
	chunkBytes = 1 << 20
)

// EmbedSeq returns the vector of each text, in order. It reads texts ahead, so that Embed gets
// about a thousand texts at a time. After an error, the sequence ends.
func (e *Encoder) EmbedSeq(ctx context.Context, texts iter.Seq[string]) iter.Seq2[[]float32, error] {
	return func(yield func([]float32, error) bool) {
		var chunk []string
		size := 0
		flush := func() bool {
			vectors, err := e.Embed(ctx, chunk)
			if err != nil {
				yield(nil, err)
				return false
			}
			for _, v := range vectors {
				if !yield(v, nil) {
					return false
				}
			}
			clear(chunk)
			chunk, size = chunk[:0], 0
			return true
		}
		for text := range texts {
			chunk = append(chunk, text)
			if size += len(text); (len(chunk) == chunkTexts || size >= chunkBytes) && !flush() {
				return
			}
		}
		if len(chunk) > 0 {
			flush()
		}
	}
}
