// Embed-server serves published encoders and rerankers over HTTP, as OpenAI, Cohere and Jina shape
// their requests. It admits requests that it can answer in time, and rejects other requests at once.
// On SIGTERM it answers the admitted requests and ends. README.md describes the protocol.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/flashkit-go/flashkit/internal/admission"
	"github.com/flashkit-go/flashkit/nn/encoder"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process
	switch err := run(ctx, os.Args[1:], os.Stderr); {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "embed-server:", err)
		os.Exit(1)
	}
}

// options are the values of the flags.
type options struct {
	Limits
	addr, model, reranker, prompt   string
	precision, calibration, float32 string
	drain                           time.Duration
	tokens                          int
}

func parseFlags(args []string, w io.Writer) (*options, error) {
	o := &options{Limits: Limits{Limits: admission.Limits{Short: 20 * time.Millisecond}}}
	flags := flag.NewFlagSet("embed-server", flag.ContinueOnError)
	flags.SetOutput(w)
	flags.StringVar(&o.model, "model", "", "`folder` of a model for /v1/embeddings")
	flags.StringVar(&o.reranker, "reranker", "", "`folder` of a model for /rerank")
	flags.StringVar(&o.prompt, "prompt", "", "`name` of the prompt before each text of /v1/embeddings; empty: the model's default")
	flags.StringVar(&o.precision, "precision", "f32", "type of the products' factors: f32, bf16-weights, bf16 or int8")
	flags.StringVar(&o.calibration, "calibration", "", "`file` of texts, one a line, that reduce the error of -precision int8; an empty line is an empty text")
	flags.StringVar(&o.float32, "float32", "", "`names` of products' weights that stay in f32, separated by commas")
	flags.StringVar(&o.addr, "addr", "localhost:8080", "`address` to listen on")
	flags.DurationVar(&o.drain, "drain", 20*time.Second, "longest `time` to answer the admitted requests, after SIGTERM")
	flags.IntVar(&o.Connections, "connections", 1024, "most connections, idle ones included")
	flags.IntVar(&o.Requests, "requests", 256, "most requests in work")
	flags.Int64Var(&o.Bytes, "bytes", 256<<20, "most `bytes` of the bodies, texts and vectors of all requests in work")
	flags.Int64Var(&o.Body, "body", 1<<20, "most `bytes` of a request's body")
	flags.IntVar(&o.Texts, "texts", 2048, "most texts of a request")
	flags.IntVar(&o.Batch, "batch", 1024, "most tokens of a call that several requests share")
	flags.DurationVar(&o.Timeout, "timeout", 30*time.Second, "latest deadline of a request")
	flags.BoolVar(&o.Truncate, "truncate", false, "truncate texts of /v1/embeddings that are too long, instead of refusing them")
	flags.IntVar(&o.tokens, "tokens", 0, "most tokens of a text; 0: the model's limit")
	flags.BoolVar(&o.Matryoshka, "matryoshka", false, "allow dimensions in requests: the model was trained so that the first elements of a vector are a vector too")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case flags.NArg() > 0:
		return nil, fmt.Errorf("argument %q: must be a flag, such as -model FOLDER", flags.Arg(0))
	case o.Connections <= 0 || o.Requests <= 0 || o.Bytes <= 0 || o.Body <= 0 || o.Texts <= 0 || o.Batch <= 0 || o.Timeout < time.Millisecond || o.drain < 0:
		return nil, errors.New("limits must be positive")
	case o.Body > o.Bytes/perBodyByte:
		return nil, fmt.Errorf("-body %d: must be at most a quarter of -bytes %d", o.Body, o.Bytes)
	case o.model == "" && o.reranker == "":
		return nil, errors.New("no model: set -model FOLDER, -reranker FOLDER, or both")
	case o.prompt != "" && o.model == "":
		return nil, errors.New("-prompt: needs -model")
	case o.float32 != "" && o.model == "":
		return nil, errors.New("-float32: needs -model")
	case name(o.model) == name(o.reranker):
		return nil, fmt.Errorf("-model and -reranker: the folders must have different names, not both %q", name(o.model))
	}
	return o, nil
}

// name returns the name of a model: the last element of its folder's path.
func name(folder string) string {
	if folder == "" {
		return ""
	}
	if path, err := filepath.Abs(folder); err == nil {
		folder = path
	}
	return filepath.Base(folder)
}

// readTexts returns the lines of a file, or nothing if file is "".
func readTexts(file string) ([]string, error) {
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(strings.ReplaceAll(string(data), "\r\n", "\n"), "\n"), "\n"), nil
}

// run serves until ctx ends, then answers the admitted requests.
func run(ctx context.Context, args []string, w io.Writer) error {
	o, err := parseFlags(args, w)
	if err != nil {
		return err
	}
	texts, err := readTexts(o.calibration)
	if err != nil {
		return err
	}
	var models [2]*model
	for i, folder := range []string{o.model, o.reranker} {
		if folder == "" {
			continue
		}
		options := encoder.Options{Precision: o.precision, Calibration: texts, MaxTokens: o.tokens}
		if i == 0 {
			options.Prompt = o.prompt
			if o.float32 != "" {
				options.Float32 = strings.Split(o.float32, ",")
			}
		}
		e, err := encoder.OpenWith(ctx, folder, options)
		if err != nil {
			return err
		}
		defer e.Close()
		if models[i], err = newModel(ctx, name(folder), e, i == 1); err != nil {
			return err
		}
	}
	listener, err := net.Listen("tcp", o.addr)
	if err != nil {
		return err
	}
	s := NewServer(models[0], models[1], o.Limits)
	fmt.Fprintf(w, "embed-server: listening on http://%s\n", listener.Addr())
	return s.Serve(ctx, listener, admission.NewHTTP(NewHandler(s), o.Limits.Limits), o.drain)
}
