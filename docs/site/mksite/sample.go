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

// heads are the heads of the sample that the page shows. The page shows 3 of 12 heads, to limit its
// size. first is the token that is selected at first.
var heads = []int{1, 8, 10}

const first = "his"

type sample struct {
	Model  string   `json:"model"`
	Tokens []string `json:"tokens"`
	Heads  []int    `json:"heads"` // indices of the heads in the model's layer
	Dim    int      `json:"dim"`
	Scale  float64  `json:"scale"`
	Row    int      `json:"row"`    // index of the selected token
	SHA256 string   `json:"sha256"` // SHA-256 of O in float32, computed in Go from Data
	Data   string   `json:"data"`   // Q, K and V in float16, each [heads][tokens][dim], packed by pack
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
	s.Data = pack(data)
	return s, s.compute(ctx, qkv)
}

// compute sets SHA256 to the hash of O, which it computes with the WebAssembly module in Go.
func (s *sample) compute(ctx context.Context, qkv [3][]float32) error {
	h, n := len(heads), len(s.Tokens)
	o := make([]float32, h*n*s.Dim)
	args := flashkit.Args{Q: flashkit.F32(qkv[0], 1, h, n, s.Dim), K: flashkit.F32(qkv[1], 1, h, n, s.Dim), V: flashkit.F32(qkv[2], 1, h, n, s.Dim), O: flashkit.F32(o, 1, h, n, s.Dim)}
	p := flashkit.ProblemOf(&args, flashkit.Band{})
	s.Scale = float64(float32(p.SoftmaxScale()))
	backend, err := wasm.New(ctx)
	if err != nil {
		return err
	}
	k := backend.Kernels()[slices.IndexFunc(backend.Kernels(), func(k flashkit.Kernel) bool { return strings.HasSuffix(k.Name, "fwd_simd128") })]
	if err := errors.Join(k.Compute(ctx, p, &args), backend.Close()); err != nil {
		return err
	}
	var b []byte
	for _, v := range o {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	s.SHA256 = hash(b)
	return nil
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
