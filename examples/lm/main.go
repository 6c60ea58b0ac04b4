// Lm trains a language model on the bytes of a text, then generates text:
//
//	go run ./examples/lm --steps 300 --curve loss.svg
//	go run ./examples/lm --text FILE --checkpoint model.safetensors
//
// With --checkpoint it regularly writes a checkpoint. If the checkpoint's file exists, a run
// resumes from it, with the same bits as an uninterrupted run.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/outfile"
	"github.com/flashkit-go/flashkit/nn"
)

type options struct {
	text, checkpoint, curve, losses string
	steps, batch, every, save       int
	sample                          int
	temperature, lr                 float64
	seed                            uint64
	flash                           bool
	workers                         int
	model                           nn.TransformerConfig
}

func parse(args []string, w io.Writer) (options, error) {
	o := options{}
	f := flag.NewFlagSet("lm", flag.ContinueOnError)
	f.SetOutput(w)
	f.StringVar(&o.text, "text", "", "`file` to learn; without it three plays of Shakespeare")
	f.StringVar(&o.checkpoint, "checkpoint", "", "`file` to go on from, if it is there, and to save to")
	f.StringVar(&o.curve, "curve", "", "`file` for the loss curve, an SVG image")
	f.StringVar(&o.losses, "losses", "", "`file` for the loss of each step, as text")
	f.IntVar(&o.steps, "steps", 300, "steps of training in all, those of the checkpoint among them")
	f.IntVar(&o.batch, "batch", 8, "sequences of a step")
	f.IntVar(&o.every, "every", 10, "steps from one progress line to the next")
	f.IntVar(&o.save, "save", 50, "steps from one checkpoint to the next")
	f.IntVar(&o.sample, "sample", 400, "bytes to write at the end")
	f.Float64Var(&o.temperature, "temperature", 0.8, "of the sample: near 0 the likeliest byte, 1 the model's probabilities")
	f.Float64Var(&o.lr, "lr", 1e-3, "learning rate")
	f.Uint64Var(&o.seed, "seed", 1, "of the parameters, batches, dropout and sample")
	f.BoolVar(&o.flash, "flash", true, "flash attention; without it the long way, with all weights of attention in memory")
	f.IntVar(&o.workers, "workers", 0, "most goroutines of a product or an attention; 0: GOMAXPROCS")
	f.IntVar(&o.model.SequenceLen, "length", 256, "bytes of a sequence")
	f.IntVar(&o.model.Embedding, "embedding", 256, "features of a row")
	f.IntVar(&o.model.Hidden, "hidden", 1024, "features between the two linear layers")
	f.IntVar(&o.model.Layers, "layers", 4, "layers")
	f.IntVar(&o.model.Heads, "heads", 4, "heads")
	f.IntVar(&o.model.DimHead, "dim-head", 64, "features of a head")
	dropout := f.Float64("dropout", 0.1, "probability to drop an element, in training")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.model.Dropout, o.model.Causal = float32(*dropout), true
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case o.steps < 0 || o.batch < 1 || o.every < 1 || o.save < 1 || o.sample < 0:
		return o, fmt.Errorf("--steps and --sample must be at least 0, --batch, --every and --save at least 1")
	case !(o.temperature > 0) || !(o.lr > 0):
		return o, fmt.Errorf("--temperature and --lr must be above 0")
	}
	return o, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), outfile.Signals()...)
	defer stop()
	o, err := parse(os.Args[1:], os.Stderr)
	if err == flag.ErrHelp {
		return
	}
	if err == nil {
		err = run(ctx, os.Stdout, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lm:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, w io.Writer, o options) error {
	if err := o.writable(); err != nil {
		return err
	}
	d, err := dispatch.Default(ctx)
	if err != nil {
		return err
	}
	defer d.Close()
	e := nn.NewEngine(d.Blank().Frozen()) // kernels chosen without measurements, so that every run uses the same
	defer e.Close()
	t, err := newTrainer(e, o)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%d bytes of text, %d of them different; %d parameters; unigrams have a loss of %.3f\n",
		len(t.text.ids), len(t.text.symbols), nn.Count(t.params), t.text.entropy())
	if t.optimizer.Steps > 0 {
		fmt.Fprintf(w, "going on after step %d of %s\n", t.optimizer.Steps, o.checkpoint)
	}
	if err := t.train(ctx, w); err != nil {
		return err
	}
	if o.sample > 0 {
		text, err := t.sample(ctx, e, o.sample)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "\n%s\n", text)
	}
	return nil
}

func (t *trainer) progress(w io.Writer, loss float64, tokens int, took time.Duration) {
	rate := float64(tokens) / took.Seconds()
	left := float64((t.steps-t.optimizer.Steps)*t.tokens.Count()) / rate
	fmt.Fprintf(w, "step %d/%d  loss %.4f  %.0f tokens/s  %s left\n", t.optimizer.Steps, t.steps, loss, rate,
		time.Duration(left*float64(time.Second)).Round(time.Second))
}
