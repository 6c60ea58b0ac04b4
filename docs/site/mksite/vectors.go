package main

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance"
	"github.com/flashkit-go/flashkit/safetensors"
)

// largest is the maximum size in bytes of a test vector's file that the page includes. All vectors
// together would have ten times the size allowed for the page.
const largest = 4350

// layouts are the names of the test vectors about strides. The page omits these, because its
// tensors are all dense.
var layouts = []string{"stride_zero", "row_gaps", "bshd", "size_one_strides"}

type vectors struct {
	Cases []vector `json:"cases"`
	Data  string   `json:"data"` // the float32 numbers of all tensors, packed by packNumbers

	All   int    `json:"-"` // number of vectors in the repository
	Which string `json:"-"` // describes which vectors are on the page
}

type vector struct {
	Name    string             `json:"name"`
	Catches string             `json:"catches"`
	Text    string             `json:"text"` // name of the problem
	Problem problem            `json:"problem"`
	Bounds  map[string]float64 `json:"bounds"`
	Tensors map[string][2]int  `json:"tensors"` // by name, the index of a tensor's first number in Data and its count of numbers; the page generates absent inputs
}

// A problem has dimensions and the options of a call that conform.js reads.
type problem struct {
	B, H, G, N, M, D, DV int
	Window               [2]*int `json:"window"` // null for no limit
	TopLeft              bool    `json:"topLeft"`
	Scale                float64 `json:"scale"`
}

func readVectors(root string) (*vectors, error) {
	testdata := filepath.Join(root, "conformance", "testdata")
	files, err := filepath.Glob(filepath.Join(testdata, "*"+conformance.VectorSuffix))
	if err != nil {
		return nil, err
	}
	v := &vectors{All: len(files)}
	v.Which = fmt.Sprintf("the traps of dense attention in float32 whose files have at most %d bytes, but for those about strides", largest)
	var data []byte
	for _, c := range conformance.Traps() {
		p := c.Problem
		if p.Features() != 0 || p.DType != flashkit.Float32 || slices.Contains(layouts, c.Name) {
			continue
		}
		packed, err := os.ReadFile(filepath.Join(testdata, c.VectorName()+conformance.VectorSuffix))
		if err != nil {
			return nil, err
		}
		if len(packed) > largest {
			continue
		}
		f, err := parse(packed)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.Name, err)
		}
		x := vector{Name: c.Name, Catches: c.Catches, Text: p.String(), Problem: problemOf(p), Bounds: map[string]float64{}, Tensors: map[string][2]int{}}
		for _, output := range []string{"o", "lse", "dq", "dk", "dv"} {
			if x.Bounds[output], err = strconv.ParseFloat(f.Metadata["bound_"+output+"_f32"], 64); err != nil {
				return nil, fmt.Errorf("%s: bound of %s: %w", c.Name, output, err)
			}
		}
		for _, t := range f.Tensors {
			numbers, err := t.Float32s()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.Name, err)
			}
			x.Tensors[t.Name] = [2]int{len(data) / 4, len(numbers)}
			for _, n := range numbers {
				data = binary.LittleEndian.AppendUint32(data, math.Float32bits(n))
			}
		}
		v.Cases = append(v.Cases, x)
	}
	v.Data = packNumbers(data, 4)
	return v, nil
}

func problemOf(p flashkit.Problem) problem {
	x := problem{B: p.Batch, H: p.Heads, G: p.KVHeads, N: p.QLen, M: p.KVLen, D: p.Dim, DV: p.VDim, TopLeft: p.Band.IsTopLeft(), Scale: float64(float32(p.SoftmaxScale()))}
	for i, keys := range []int{p.Band.Left(), p.Band.Right()} {
		if keys != flashkit.Unlimited {
			x.Window[i] = &keys
		}
	}
	return x
}

func parse(packed []byte) (*safetensors.File, error) {
	b, err := unzip(packed)
	if err != nil {
		return nil, err
	}
	return safetensors.Parse(b)
}

func unzip(packed []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}
