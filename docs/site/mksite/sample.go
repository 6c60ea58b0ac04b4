package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/wasm"
	"github.com/flashkit-go/flashkit/internal/half"
	"github.com/flashkit-go/flashkit/safetensors"
)

// heads are the heads of the sample that the page shows. The page shows 2 of 12 heads, to limit its
// size. first is the token that is selected at first.
var heads = []int{1, 8}

// The page's choices for the window, in tokens on each side, and for the softcap. 0 is none.
var (
	windows  = []int{0, 4, 16}
	softcaps = []float32{0, 1, 5}
)

const first = "his"

type sample struct {
	Model  string   `json:"model"`
	Tokens []string `json:"tokens"`
	Heads  []int    `json:"heads"` // indices of the heads in the model's layer
	Dim    int      `json:"dim"`
	Row    int      `json:"row"`  // index of the selected token
	Data   string   `json:"data"` // Q, K and V in float16, each [heads][tokens][dim], packed by packNumbers

	// The first 16 digits of the SHA-256 of O in float32, computed in Go from Data. The key has the page's
	// options: causal, window, softcap, ALiBi.
	Outputs map[string]string `json:"outputs"`
}

func readSample(ctx context.Context, root string) (*sample, error) {
	b, err := os.ReadFile(filepath.Join(root, "internal/input/sample/attention.safetensors"))
	if err != nil {
		return nil, err
	}
	f, err := safetensors.Parse(b)
	if err != nil {
		return nil, err
	}
	s := &sample{Heads: heads, Tokens: tokens(f.Metadata["text"])}
	s.Model, _, _ = strings.Cut(f.Metadata["model"], " ")
	if s.Row = slices.Index(s.Tokens, first); s.Row < 0 {
		return nil, fmt.Errorf("the sample has no token %q", first)
	}
	var data []byte
	var qkv [3][]float32
	for i, name := range []string{"q", "k", "v"} {
		t, ok := f.Tensor(name)
		if !ok || len(t.Shape) != 4 || t.Shape[0] != 1 || t.Shape[2] != len(s.Tokens) || t.Shape[1] <= slices.Max(heads) {
			return nil, fmt.Errorf("the sample's %s has the shape %v, and the text %d tokens", name, t.Shape, len(s.Tokens))
		}
		x, err := t.Float32s()
		if err != nil {
			return nil, err
		}
		s.Dim = t.Shape[3]
		for _, h := range heads {
			for _, v := range x[h*len(s.Tokens)*s.Dim:][:len(s.Tokens)*s.Dim] {
				u := half.ToF16(v)
				data = binary.LittleEndian.AppendUint16(data, u)
				qkv[i] = append(qkv[i], half.FromF16(u))
			}
		}
	}
	s.Data = packNumbers(data, 2)
	return s, s.compute(ctx, qkv)
}

// compute sets Outputs. It computes O with the WebAssembly module in Go, for every choice of options.
func (s *sample) compute(ctx context.Context, qkv [3][]float32) error {
	backend, err := wasm.New(ctx)
	if err != nil {
		return err
	}
	k := backend.Kernels()[slices.IndexFunc(backend.Kernels(), func(k flashkit.Kernel) bool { return strings.HasSuffix(k.Name, "fwd_simd128") })]
	s.Outputs = map[string]string{}
	for choice := range 4 * len(windows) * len(softcaps) {
		causal, alibi, window, softcap := choice%2, choice/2%2, windows[choice/4%len(windows)], softcaps[choice/4/len(windows)]
		sum, err := s.output(ctx, &k, qkv, causal == 1, alibi == 1, window, softcap)
		if err != nil {
			return errors.Join(err, backend.Close())
		}
		s.Outputs[fmt.Sprintf("%d,%d,%v,%d", causal, window, softcap, alibi)] = sum[:16]
	}
	return backend.Close()
}

// output returns the SHA-256 of O for a choice of options.
func (s *sample) output(ctx context.Context, k *flashkit.Kernel, qkv [3][]float32, causal, alibi bool, window int, softcap float32) (string, error) {
	h, n := len(heads), len(s.Tokens)
	o, tensor := make([]float32, h*n*s.Dim), func(x []float32) flashkit.Tensor { return flashkit.F32(x, 1, h, n, s.Dim) }
	args := flashkit.Args{Q: tensor(qkv[0]), K: tensor(qkv[1]), V: tensor(qkv[2]), O: tensor(o), LSE: flashkit.Zeros(flashkit.Float32, 1, h, n, 1)}
	if alibi {
		args.Slopes = flashkit.Zeros(flashkit.Float32, 1, h, 1, 1)
		for i := range h {
			args.Slopes.Float32s()[i] = float32(math.Exp2(-8 * float64(i+1) / float64(h)))
		}
	}
	left, right := flashkit.Unlimited, flashkit.Unlimited
	if window > 0 {
		left, right = window, window
	}
	if causal {
		right = 0
	}
	p := flashkit.ProblemOf(&args, flashkit.Window(left, right))
	p.Score.Softcap = softcap
	if err := k.Compute(ctx, p, &args); err != nil {
		return "", err
	}
	var b []byte
	for _, v := range o {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return hash(b), nil
}

var word = regexp.MustCompile(`\w+|[^\w\s]`)

// pieces maps words that are not in the model's vocabulary to their tokens.
var pieces = map[string][]string{"bennet": {"ben", "##net"}, "netherfield": {"net", "##her", "##field"}}

// tokens returns the tokens that the model's tokenizer would return for text.
func tokens(text string) []string {
	list := []string{"[CLS]"}
	for _, w := range word.FindAllString(strings.ToLower(text), -1) {
		if p, ok := pieces[w]; ok {
			list = append(list, p...)
		} else {
			list = append(list, w)
		}
	}
	return append(list, "[SEP]")
}
