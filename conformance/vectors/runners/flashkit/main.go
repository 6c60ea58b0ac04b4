// Flashkit is a runner for flashkit's own backends, and for kernels with one planted mistake:
//
//	flashkit simd FOLDER
//	flashkit wasm FOLDER
//	flashkit mutant:causal_short FOLDER
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/backends/wasm"
	"github.com/flashkit-go/flashkit/conformance/mutants"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/safetensors"
)

func main() {
	err := run(os.Args[1], os.Args[2])
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		fmt.Println(err)
		os.Exit(77)
	case err != nil:
		fmt.Println(err)
		os.Exit(1)
	}
}

func open(name string) (flashkit.Backend, error) {
	if mistake, ok := strings.CutPrefix(name, "mutant:"); ok {
		return mutants.New(mistake)
	}
	switch name {
	case "simd":
		return simd.New(), nil
	case "wasm":
		return wasm.New(context.Background())
	}
	return nil, fmt.Errorf("unknown backend %q", name)
}

func run(backend, folder string) error {
	b, err := open(backend)
	if err != nil {
		return err
	}
	defer b.Close()
	var c struct {
		Problem string
		Outputs []string
		Seed    uint64 `json:",string"`
		Origin  [4]int
	}
	text, err := os.ReadFile(filepath.Join(folder, "case.json"))
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		return err
	}
	p, err := flashkit.ParseProblem(c.Problem)
	if err != nil {
		return err
	}
	blob, err := os.ReadFile(filepath.Join(folder, "inputs.safetensors"))
	if err != nil {
		return err
	}
	in, err := safetensors.Parse(blob)
	if err != nil {
		return err
	}
	o := flashkit.Origin{Batch: c.Origin[0], Head: c.Origin[1], Row: c.Origin[2], Key: c.Origin[3]}
	args := &flashkit.Args{Seed: c.Seed, Origin: o}
	if err := read(in, &p, args); err != nil {
		return err
	}
	d := dispatch.New(b)
	if err := d.Forward(context.Background(), p, args); err != nil {
		return err
	}
	if slices.Contains(c.Outputs, "dq") {
		if err := d.Backward(context.Background(), p, args); err != nil {
			return err
		}
	}
	return write(filepath.Join(folder, "outputs.safetensors"), args, c.Outputs)
}

// read sets the inputs of args to the file's tensors and allocates the outputs.
func read(in *safetensors.File, p *flashkit.Problem, args *flashkit.Args) error {
	if p.Ragged {
		args.Seqs = new(flashkit.Sequences)
		for name, to := range map[string]*[]int32{"q_lens": &args.Seqs.QLens, "kv_lens": &args.Seqs.KVLens} {
			if t, ok := in.Tensor(name); ok {
				*to, _ = t.Int32s()
			}
		}
	}
	if p.Page != 0 {
		return fmt.Errorf("no pages: %w", errors.ErrUnsupported)
	}
	names := map[string]string{"O": "earlier", "LSE": "earlier_lse", "RowMax": "earlier_rowmax"}
	for _, a := range flashkit.Arguments() {
		name := strings.ToLower(a.Name)
		if names[a.Name] != "" {
			name = names[a.Name]
		}
		shape, dtype := a.Shape(p), a.DType(p)
		t, given := in.Tensor(name)
		used := a.Role(p, flashkit.PassForward)|a.Role(p, flashkit.PassBackward) != 0
		switch {
		case given:
			t.Shape = four(a.Name, t.Shape)
			x, err := t.Decode()
			if err != nil {
				return err
			}
			*a.Of(args) = x
		case used && a.Name == "DBias":
			s := args.Bias.Shape()
			args.DBias = flashkit.Zeros(args.Bias.DType(), s[0], s[1], s[2], s[3])
		case used && a.Name != "DLSE":
			*a.Of(args) = flashkit.Zeros(dtype, shape[0], shape[1], shape[2], shape[3])
		}
	}
	return nil
}

// four returns the shape that flashkit gives an argument. The files omit dimensions of 1.
func four(name string, s []int) []int {
	switch name {
	case "LSE", "DLSE", "RowMax":
		return append(s, 1)
	case "Slopes":
		return append(s, 1, 1)
	case "Sink":
		return []int{1, s[0], 1, 1}
	}
	return s
}

func write(path string, args *flashkit.Args, outputs []string) error {
	f := &safetensors.File{}
	for _, a := range flashkit.Arguments() {
		for _, name := range outputs {
			if name != strings.ToLower(a.Name) {
				continue
			}
			t, err := safetensors.Encode(name, *a.Of(args))
			if err != nil {
				return err
			}
			switch name {
			case "lse", "rowmax":
				t.Shape = t.Shape[:3]
			case "dsink":
				t.Shape = t.Shape[1:2]
			}
			f.Tensors = append(f.Tensors, t)
		}
	}
	var b bytes.Buffer
	if err := f.Write(&b); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o666)
}
