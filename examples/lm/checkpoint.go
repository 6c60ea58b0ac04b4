package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"github.com/flashkit-go/flashkit/internal/outfile"
	"github.com/flashkit-go/flashkit/nn"
	"github.com/flashkit-go/flashkit/safetensors"
)

// state returns all tensors of a checkpoint: parameters, optimizer state, and the losses of the
// given number of steps.
func (t *trainer) state(steps int) []*nn.Param {
	if len(t.history) != steps {
		t.history = make([]float32, steps)
	}
	list := append(append([]*nn.Param(nil), t.params...), t.optimizer.State()...)
	return append(list, &nn.Param{Name: "losses", Shape: []int{steps}, Data: t.history})
}

// recipe returns as JSON the settings that must be the same in a resumed run.
func (t *trainer) recipe() (string, error) {
	b, err := json.Marshal(map[string]any{"model": t.options.model, "batch": t.options.batch, "lr": t.lr, "seed": t.seed, "bytes": len(t.text.ids), "symbols": t.text.symbols})
	return string(b), err
}

// A run writes files of the three kinds below. The function Is recognizes a kind by the beginning
// of a file, so that a run replaces no existing file of another kind.
const (
	lossesBegin = "# loss of each step, by examples/lm\n"
	curveTitle  = "Loss against step"
)

var (
	checkpointKind = outfile.Kind{Name: "a checkpoint of examples/lm", Is: containing(`{"__metadata__":{"recipe":`)}
	lossesKind     = outfile.Kind{Name: "the losses of examples/lm", Is: containing(lossesBegin)}
	curveKind      = outfile.Kind{Name: "a curve of examples/lm", Is: containing(`aria-label="` + curveTitle + `"`)}
)

func containing(mark string) func([]byte) bool {
	return func(begin []byte) bool { return bytes.Contains(begin, []byte(mark)) }
}

// checksum returns the SHA-256 of the values of a state's tensors, in hexadecimal.
func checksum(state []*nn.Param) string {
	h := sha256.New()
	for _, p := range state {
		binary.Write(h, binary.LittleEndian, p.Data) // a hash never fails
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// part is the suffix of the name of a checkpoint that is not yet completely written.
const part = ".part"

// writable returns an error if an output file cannot be written. The program calls it before
// training.
func (o *options) writable() error {
	files := []struct {
		path, suffix string
		kind         outfile.Kind
	}{{o.checkpoint, part, checkpointKind}, {o.losses, "", lossesKind}, {o.curve, "", curveKind}}
	for _, f := range files {
		if f.path == "" {
			continue
		}
		file, err := outfile.CreateVia(f.path, f.suffix, f.kind)
		if err != nil {
			return err
		}
		file.Discard()
	}
	return nil
}

// save writes the checkpoint to a partial file, then renames that file. If the run is killed
// meanwhile, the previous checkpoint is still complete. The next run replaces the partial file.
func (t *trainer) save() error {
	if t.checkpoint == "" {
		return nil
	}
	recipe, err := t.recipe()
	if err != nil {
		return err
	}
	f, err := outfile.CreateVia(t.checkpoint, part, checkpointKind)
	if err != nil {
		return err
	}
	n := t.optimizer.Steps
	state := t.state(n)
	return f.Commit(func(w io.Writer) error {
		return nn.Save(w, state, map[string]string{"step": strconv.Itoa(n), "recipe": recipe, "sha256": checksum(state)})
	})
}

// load resumes from the checkpoint, if it exists.
func (t *trainer) load() error {
	if t.checkpoint == "" {
		return nil
	}
	b, err := os.ReadFile(t.checkpoint)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	f, err := safetensors.Parse(b)
	if err != nil {
		return fmt.Errorf("%s: %w", t.checkpoint, err)
	}
	recipe, err := t.recipe()
	if err != nil {
		return err
	}
	if f.Metadata["recipe"] != recipe {
		return fmt.Errorf("%s is of another run: it has %.300q, and this one %.300q", t.checkpoint, f.Metadata["recipe"], recipe)
	}
	n, err := strconv.Atoi(f.Metadata["step"])
	losses, _ := f.Tensor("losses")
	if err != nil || len(losses.Shape) != 1 || losses.Shape[0] != n {
		return fmt.Errorf("%s: step %.60q is not the number of its losses, %d", t.checkpoint, f.Metadata["step"], losses.Shape)
	}
	state := t.state(n)
	if err := nn.Assign(f, state); err != nil {
		return fmt.Errorf("%s: %w", t.checkpoint, first(err))
	}
	if sum := checksum(state); f.Metadata["sha256"] != sum {
		return fmt.Errorf("%s is damaged: its values have the SHA-256 %s, and it says %.64q", t.checkpoint, sum, f.Metadata["sha256"])
	}
	t.optimizer.Steps = n
	return nil
}

// first returns the first of several joined errors, followed by the number of the other errors.
func first(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		if list := joined.Unwrap(); len(list) > 1 {
			return fmt.Errorf("%w, and %d more", list[0], len(list)-1)
		}
	}
	return err
}
