package encoder

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/cublas"
	"github.com/flashkit-go/flashkit/internal/workers"
	"github.com/flashkit-go/flashkit/nn"
	"github.com/flashkit-go/flashkit/nn/tokenizer"
)

// An Overflow is the treatment of a text of more tokens than the limit.
type Overflow int

// The reactions to a text that is too long.
const (
	Truncate Overflow = iota // the last tokens are dropped, as in Hugging Face's tokenizers
	Refuse                   // the call fails with an error that names the text's index
)

// Options are the options of OpenWith. The zero Options are the defaults.
type Options struct {
	Workers     int                   // maximum number of goroutines of a call; 0 is GOMAXPROCS. Results do not depend on Workers
	Precision   string                // type of the matrix products' factors, with bf16, and for long texts with int8, also in attention: f32 (or empty), bf16-weights, bf16, int8. docs/layers.md compares them
	Calibration []string              // texts that show the model's largest features, to reduce the error of int8; a few hundred words are enough. Open first runs them in f32
	Float32     []string              // names of products' weights, such as encoder.layer.2.output.dense.weight, that stay in f32. Queries, keys and values are one product, with the queries' name
	MaxTokens   int                   // maximum number of tokens of a text, with special tokens; 0 is the model's
	Overflow    Overflow              // of longer texts
	Prompt      string                // name of a prompt of the model, which precedes each text of Embed; empty is the model's default
	GPU         *cuda.Backend         // runs the layers, with cuBLAS for their products, in f32; nil is the CPU. Without cuBLAS the CPU runs them, and Explain gives the reason. Close the Encoder before the Backend
	Dispatcher  *dispatch.Dispatcher  // runs the attention; nil is dispatch.Default, which Close closes
	Progress    func(done, total int) // nil, or called after each group of texts, by one goroutine at a time
}

// An Encoder is a published model with its tokenizer. It is safe for concurrent use.
type Encoder struct {
	options   Options
	model     family
	tokenizer *tokenizer.Tokenizer
	vectors   *chain             // from hidden states to vectors; nil if modules.json has no Pooling
	pooling   pooling            // of a folder without modules.json
	head      *head              // nil if the model is no sequence classifier
	tagger    *tagger            // nil if the model is no token classifier
	prompts   map[string]*prompt // by name; a nil prompt has no text
	prompt    prompt             // of Embed
	most      int                // maximum number of tokens of a text
	smooth    *calibration       // nil except while the files are read

	gpu    *gpu   // nil if the CPU runs the layers
	why    string // why the CPU runs them although there is Options.GPU
	engine *nn.Engine
	owned  *dispatch.Dispatcher // closed by Close; nil if the caller passed a Dispatcher
	pool   workers.Pool

	mu   sync.Mutex
	free []*call // memory of finished calls
}

// A prompt is a text before each text of a call.
type prompt struct {
	text string
	skip int // its tokens, without a special token at the end
}

// precisions are the values of Options.Precision.
var precisions = map[string]nn.Precision{
	"": nn.Float32, "f32": nn.Float32, "bf16-weights": nn.BF16Weights, "bf16": nn.BF16, "int8": nn.Int8,
}

// Open reads the model of a folder, as published by its makers. It returns an error if the folder
// asks for anything that this package does not compute, because the results would then be wrong.
func Open(ctx context.Context, dir string) (*Encoder, error) {
	return OpenWith(ctx, dir, Options{})
}

// OpenWith is Open with options.
func OpenWith(ctx context.Context, dir string, o Options) (*Encoder, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	smooth, err := calibrate(ctx, dir, o)
	if err != nil {
		return nil, err
	}
	if smooth != nil {
		runtime.GC() // otherwise the weights in float32 would stay in memory while the files are read again
	}
	return openSmoothed(ctx, dir, o, smooth)
}

// openSmoothed is OpenWith after the calibration.
func openSmoothed(ctx context.Context, dir string, o Options, smooth *calibration) (*Encoder, error) {
	e := &Encoder{options: o, smooth: smooth}
	if err := e.open(ctx, dir); err != nil {
		return nil, errors.Join(err, e.gpu.free())
	}
	e.smooth = nil
	return e, nil
}

func (e *Encoder) open(ctx context.Context, dir string) error {
	if e.options.GPU != nil {
		var err error
		if e.gpu, err = openGPU(e.options.GPU); errors.Is(err, cublas.ErrMissing) {
			e.why = err.Error()
		} else if err != nil {
			return err
		}
	}
	if err := e.read(dir); err != nil {
		return err
	}
	d := e.options.Dispatcher
	if d == nil {
		var err error
		if d, err = dispatch.Default(ctx); err != nil {
			return err
		}
		e.owned = d
	}
	e.engine = nn.NewEngine(d)
	return nil
}

func (o *Options) check() error {
	_, known := precisions[o.Precision]
	switch {
	case o.Workers < 0:
		return problem("Options.Workers", o.Workers, "must be at least 1, or 0 for GOMAXPROCS")
	case !known:
		return problem("Options.Precision", fmt.Sprintf("%.40q", o.Precision), "must be f32, bf16-weights, bf16 or int8")
	case len(o.Calibration) > 0 && o.Precision != "int8":
		return problem("Options.Calibration", fmt.Sprintf("%d texts", len(o.Calibration)), "must be empty unless Options.Precision is int8")
	case len(o.Float32) > 0 && precisions[o.Precision] == nn.Float32:
		return problem("Options.Float32", fmt.Sprintf("%d names", len(o.Float32)), "must be empty if Options.Precision is f32")
	case o.GPU != nil && precisions[o.Precision] != nn.Float32:
		return problem("Options.Precision", o.Precision, "must be f32 with Options.GPU")
	case o.MaxTokens < 0:
		return problem("Options.MaxTokens", o.MaxTokens, "must be at least 1, or 0 for the model's")
	case o.Overflow != Truncate && o.Overflow != Refuse:
		return problem("Options.Overflow", int(o.Overflow), "must be Truncate or Refuse")
	}
	return nil
}

// Close ends the Encoder's goroutines, and closes the Dispatcher unless the caller passed it. No
// call may be in progress.
func (e *Encoder) Close() {
	e.pool.Close()
	e.engine.Close()
	e.gpu.free() // fails if the device is lost, which the calls have reported
	if e.owned != nil {
		e.owned.Close()
	}
}

// gpuFor returns the GPU for a model, or nil if the CPU runs its layers.
func (e *Encoder) gpuFor(c *config) *gpu {
	if name := c.text("model_type", ""); e.gpu != nil && name == "mpnet" {
		e.why = "a GPU does not run the layers of model_type " + name
		e.gpu.free()
		e.gpu = nil
	}
	return e.gpu
}

// Explain returns where the model's layers run, in a few lines of text. If Options.GPU is given but
// the CPU runs the layers, Explain gives the reason.
func (e *Encoder) Explain() string {
	rest := "embeddings, pooling and heads: CPU"
	switch {
	case e.gpu != nil:
		return fmt.Sprintf("products, norms and attention of %d layers: %s\n%s", len(e.model.body().layers), e.gpu.name, rest)
	case e.why != "":
		return fmt.Sprintf("products and norms of %d layers: CPU, not %s: %s\nattention: Options.Dispatcher\n%s", len(e.model.body().layers), e.options.GPU.Device().Name, e.why, rest)
	}
	return fmt.Sprintf("products and norms of %d layers: CPU\nattention: Options.Dispatcher\n%s", len(e.model.body().layers), rest)
}

// Dim returns the length of Embed's vectors, or 0 if the model computes scores alone.
func (e *Encoder) Dim() int {
	if e.vectors == nil {
		return 0
	}
	return e.vectors.width()
}

// MaxTokens returns the maximum number of tokens of a text, with special tokens: the limit of the
// files or of Options, but at most the model's positions, also where sentence-transformers stops at
// a longer text. 0 means no limit.
func (e *Encoder) MaxTokens() int { return e.most }

// Tokens returns the number of tokens of a text, with special tokens and the prompt, before
// truncation.
func (e *Encoder) Tokens(text string) int {
	var x tokenizer.Encoding
	e.tokenizer.Encode(&x, 0, e.prompt.text+text)
	return x.Tokens
}

func problem(field string, value any, format string, args ...any) error {
	return &flashkit.ProblemError{Field: field, Value: fmt.Sprint(value), Reason: fmt.Sprintf(format, args...)}
}
