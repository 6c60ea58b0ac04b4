package encoder

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flashkit-go/flashkit/safetensors"
)

// within adds a path to an error.
func within(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", path, err)
}

// openWeights reads model.safetensors, or the shards that model.safetensors.index.json names. It
// cuts the prefix from names that have it, and renames gamma to weight, and beta to bias.
func openWeights(dir, prefix string) (*safetensors.File, error) {
	name := filepath.Join(dir, "model.safetensors")
	f, err := openTensors(name)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = openShards(dir, name+".index.json")
	}
	if errors.Is(err, fs.ErrNotExist) {
		for _, other := range []string{"pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack", "model.onnx", "onnx/model.onnx"} {
			if _, e := os.Stat(filepath.Join(dir, other)); e == nil {
				return nil, fmt.Errorf("%s is missing, and %s is not read: convert it to safetensors", name, filepath.Join(dir, other))
			}
		}
		return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	return f, within(name, rename(f, prefix))
}

func openTensors(name string) (*safetensors.File, error) {
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", name)
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	f, err := safetensors.Read(file, info.Size())
	return f, within(name, err)
}

// openShards reads the files that an index names, which are in dir.
func openShards(dir, index string) (*safetensors.File, error) {
	b, err := readFile(index, maxSettings)
	if err != nil {
		return nil, err
	}
	if err := validJSON(index, b); err != nil {
		return nil, err
	}
	var x struct {
		Map map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(b, &x); err != nil || len(x.Map) == 0 {
		return nil, fmt.Errorf("%s: must be a JSON object with weight_map, the file of each tensor", index)
	}
	files := map[string]bool{}
	for _, file := range x.Map {
		files[file] = true
	}
	all := &safetensors.File{}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if !filepath.IsLocal(file) || filepath.Base(file) != file {
			return nil, fmt.Errorf("%s: weight_map: %.60q: must be a file of the folder", index, file)
		}
		f, err := openTensors(filepath.Join(dir, file))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s is missing, and %s names it", filepath.Join(dir, file), index)
		}
		if err != nil {
			return nil, err
		}
		for _, t := range f.Tensors {
			if x.Map[t.Name] == file {
				delete(x.Map, t.Name)
				all.Tensors = append(all.Tensors, t)
			}
		}
	}
	for name, file := range x.Map {
		return nil, fmt.Errorf("%s: weight_map: tensor %.80q is not in %s", index, name, file)
	}
	return all, nil
}

// rename cuts the prefix from names that have it. It renames LayerNorm's gamma to weight, and beta
// to bias, as in the first published BERTs.
func rename(f *safetensors.File, prefix string) error {
	now := strings.NewReplacer("LayerNorm.gamma", "LayerNorm.weight", "LayerNorm.beta", "LayerNorm.bias")
	seen := map[string]string{}
	for i := range f.Tensors {
		t := &f.Tensors[i]
		old := t.Name
		t.Name = now.Replace(strings.TrimPrefix(old, prefix))
		if other, twice := seen[t.Name]; twice {
			return fmt.Errorf("tensors %.300q and %.300q are the same parameter", other, old)
		}
		seen[t.Name] = old
	}
	return nil
}
