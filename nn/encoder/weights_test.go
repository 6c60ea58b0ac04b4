package encoder

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/nn"
	"github.com/flashkit-go/flashkit/safetensors"
)

// bytesWeights returns the tensors of a file's bytes, as openWeights does.
func bytesWeights(file []byte, prefix string) (*weights, error) {
	f := &weights{sources: map[string]source{}}
	if err := f.add("model.safetensors", bytes.NewReader(file), int64(len(file)), nil); err != nil {
		return nil, err
	}
	return f, f.rename(prefix)
}

// A layer's weights are free before the next layer is read.
func TestLayersAreFreed(t *testing.T) {
	v, file := readTiny(t)
	c, err := parseConfig("config.json", v.Config)
	require.NoError(t, err)
	c.checkCommon()
	f, err := bytesWeights(file, "")
	require.NoError(t, err)
	c.elements = f.elements()
	read := map[string]weak.Pointer[byte]{}
	_, err = kinds["bert"].load(c, nn.FromTensors(func(name string) (safetensors.Tensor, error) {
		if strings.HasPrefix(name, "encoder.layer.1.") {
			runtime.GC()
			for old, data := range read {
				require.Nil(t, data.Value(), "%s when %s is read", old, name)
			}
		}
		x, err := f.require(name)
		if strings.HasPrefix(name, "encoder.layer.0.") && len(x.Shape) == 2 {
			read[name] = weak.Make(&x.Data[0])
		}
		return x, err
	}), nn.Float32)
	require.NoError(t, err)
	require.Len(t, read, 6)
}

// A config that claims many layers takes no memory for them.
func TestLayersAreInProportion(t *testing.T) {
	v, file := readTiny(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := loadText(edit(string(v.Config), `"num_hidden_layers": 2`, `"num_hidden_layers": 2000000`), file, nn.Float32)
	runtime.ReadMemStats(&after)
	require.ErrorContains(t, err, "encoder.layer.2.")
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20))
}

// Errors name the kind of a path that is no model's folder.
func TestOpenNoFolder(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(t.Context(), filepath.Join(dir, "some", "model"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "there is no such folder; a model must be a folder of this machine")
	_, err = Open(t.Context(), dir)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "config.json is missing: the folder is no model's, or not all of it")
	file := filepath.Join(dir, "model.safetensors")
	require.NoError(t, os.WriteFile(file, nil, 0o666))
	_, err = Open(t.Context(), file)
	require.ErrorContains(t, err, "must be a model's folder, not a file")
}
