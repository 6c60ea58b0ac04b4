package encoder

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flashkit-go/flashkit/internal/strict"
	"github.com/flashkit-go/flashkit/safetensors"
)

// within adds a path to an error.
func within(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", path, err)
}

// weights are the tensors of a model's files. They are read when a layer needs them.
type weights struct {
	safetensors.File // the tensors without their data
	sources          map[string]source
	files            []io.Closer
	changes          map[string]func(safetensors.Tensor) (safetensors.Tensor, error) // of an adapter, by tensor
}

// A source is a tensor of a file.
type source struct {
	path string
	file *safetensors.Index
	i    int
}

// openWeights opens model.safetensors, or the shards that model.safetensors.index.json names. It
// cuts the prefix from names that have it, and renames gamma to weight, and beta to bias. After an
// error, there is nothing to close.
func openWeights(dir, prefix string) (*weights, error) {
	name := filepath.Join(dir, "model.safetensors")
	w := &weights{sources: map[string]source{}}
	err := w.open(name, nil)
	if errors.Is(err, fs.ErrNotExist) {
		err = w.openShards(dir, name+".index.json")
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = otherWeights(dir, name)
	} else if err == nil {
		err = within(name, w.rename(prefix))
	}
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// otherWeights returns the error for a folder without model.safetensors.
func otherWeights(dir, name string) error {
	for _, other := range []string{"pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack", "model.onnx", "onnx/model.onnx"} {
		if exists(filepath.Join(dir, other)) {
			return fmt.Errorf("%s is missing, and %s is not read: convert it to safetensors", name, filepath.Join(dir, other))
		}
	}
	return fmt.Errorf("%s: %w", name, fs.ErrNotExist)
}

// close closes the files. No tensor can be read after it.
func (w *weights) close() {
	for _, f := range w.files {
		f.Close()
	}
}

// elements returns the maximum number of elements of all tensors. No type that is read has less than
// 2 bytes.
func (w *weights) elements() int {
	n := 0
	for _, s := range w.sources {
		n += s.file.Size(s.i) / 2
	}
	return n
}

// require returns a tensor with its data.
func (w *weights) require(name string) (safetensors.Tensor, error) {
	t, err := w.Require(name)
	if err != nil {
		return t, err
	}
	s := w.sources[name]
	if t, err = s.file.Read(s.i); err != nil {
		return t, within(s.path, err)
	}
	t.Name = name
	if change := w.changes[name]; change != nil {
		return change(t)
	}
	return t, nil
}

// open adds the tensors of a file that the function wants, or all if it is nil.
func (w *weights) open(name string, wants func(tensor string) bool) error {
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: not a regular file", name)
	}
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	w.files = append(w.files, file)
	return w.add(name, file, info.Size(), wants)
}

// add adds the tensors of an open file of the given size.
func (w *weights) add(name string, file io.ReaderAt, size int64, wants func(tensor string) bool) error {
	x, err := safetensors.ReadIndex(file, size)
	if err != nil {
		return within(name, err)
	}
	for i, t := range x.Tensors {
		if wants == nil || wants(t.Name) {
			w.Tensors = append(w.Tensors, t)
			w.sources[t.Name] = source{name, x, i}
		}
	}
	return nil
}

// openShards opens the files that an index names, which are in dir.
func (w *weights) openShards(dir, index string) error {
	b, err := strict.Read(index, maxSettings)
	if err != nil {
		return err
	}
	if err := strict.Valid(index, b); err != nil {
		return err
	}
	var x struct {
		Map map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(b, &x); err != nil || len(x.Map) == 0 {
		return fmt.Errorf("%s: must be a JSON object with weight_map, the file of each tensor", index)
	}
	files := map[string]bool{}
	for _, file := range x.Map {
		files[file] = true
	}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if !filepath.IsLocal(file) || filepath.Base(file) != file {
			return fmt.Errorf("%s: weight_map: %.60q: must be a file of the folder", index, file)
		}
		err := w.open(filepath.Join(dir, file), func(tensor string) bool {
			wanted := x.Map[tensor] == file
			if wanted {
				delete(x.Map, tensor)
			}
			return wanted
		})
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is missing, and %s names it", filepath.Join(dir, file), index)
		}
		if err != nil {
			return err
		}
	}
	for name, file := range x.Map {
		return fmt.Errorf("%s: weight_map: tensor %.80q is not in %s", index, name, file)
	}
	return nil
}

// rename cuts the prefix from names that have it. It renames LayerNorm's gamma to weight, and beta
// to bias, as in the first published BERTs.
func (w *weights) rename(prefix string) error {
	now := strings.NewReplacer("LayerNorm.gamma", "LayerNorm.weight", "LayerNorm.beta", "LayerNorm.bias")
	seen, sources := map[string]string{}, map[string]source{}
	for i := range w.Tensors {
		t := &w.Tensors[i]
		old := t.Name
		t.Name = now.Replace(strings.TrimPrefix(old, prefix))
		if other, twice := seen[t.Name]; twice {
			return fmt.Errorf("tensors %.300q and %.300q are the same parameter", other, old)
		}
		seen[t.Name], sources[t.Name] = old, w.sources[old]
	}
	w.sources = sources
	return nil
}
