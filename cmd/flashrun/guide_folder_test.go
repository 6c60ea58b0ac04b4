package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/flashkit-go/flashkit/safetensors"
)

// hurried shortens a command's measurements in the test of the guides, which does not compare
// figures.
func hurried(args []string) []string {
	if os.Getenv("FLASHRUN_HURRY") == "" || len(args) < 2 {
		return args
	}
	kind := args[1]
	if slices.Contains(args, "--trace") {
		kind = "live"
	}
	few := []string{"--time-per-case", "5ms", "--problem", "b1-h4-g2-n1-m300-d64-bf16", "--problem", "b1-h4-g2-n100-m100-d32-f32"}
	add := map[string][]string{"run": {"--repeat", "1"}, "bench": {"--time-per-case", "50ms"}, "memory": {"--limit", "30ms"}, "calibrate": few, "live": {"--runs", "1"}}
	return append(args, add[kind]...)
}

// guideFolder creates the files that the commands expect: tensors, good and bad, and modules that
// import this one.
func guideFolder(env *testscript.Env) error {
	repository, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	env.Setenv("REPOSITORY", repository)
	hurry := "1"
	if *writeDocs {
		hurry = ""
	}
	env.Setenv("HURRY", hurry)
	env.Setenv("FLASHRUN_HURRY", hurry)
	env.Setenv("CUDA_VISIBLE_DEVICES", "-1") // the guides are of a machine without a GPU
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPATH", "GOPROXY", "GOFLAGS", "GOTOOLCHAIN"} {
		value, err := exec.Command("go", "env", name).Output()
		if err != nil {
			return err
		}
		env.Setenv(name, strings.TrimSpace(string(value)))
	}
	if err := guideTensors(env.WorkDir); err != nil {
		return err
	}
	if err := guideBackend(filepath.Join(env.WorkDir, "mine"), repository); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(env.WorkDir, "first"), 0o755); err != nil {
		return err
	}
	return guideModule(filepath.Join(env.WorkDir, "hello"), repository, map[string]string{"main.go": "examples/quickstart/main.go"})
}

// guideTensors writes q, k and v in every format, and files that are refused.
func guideTensors(dir string) error {
	random := rand.New(rand.NewPCG(1, 1))
	var file safetensors.File
	for _, x := range []struct {
		name  string
		heads int
	}{{"q", 8}, {"k", 2}, {"v", 2}} {
		values := make([]float32, x.heads*256*64)
		for i := range values {
			values[i] = float32(random.NormFloat64())
		}
		file.Tensors = append(file.Tensors, safetensors.FromFloat32s(x.name, []int{1, x.heads, 256, 64}, values))
		header := fmt.Sprintf("{'descr': '<f4', 'fortran_order': False, 'shape': (1, %d, 256, 64), }", x.heads)
		npy := fmt.Appendf(nil, "\x93NUMPY\x01\x00%c%c%-117s\n", 118, 0, header)
		for _, v := range values {
			npy = binary.LittleEndian.AppendUint32(npy, math.Float32bits(v))
		}
		if err := os.WriteFile(filepath.Join(dir, x.name+".npy"), npy, 0o644); err != nil {
			return err
		}
	}
	var b bytes.Buffer
	if err := file.Write(&b); err != nil {
		return err
	}
	header := 8 + int(binary.LittleEndian.Uint64(b.Bytes()))
	if err := os.WriteFile(filepath.Join(dir, "cut.safetensors"), b.Bytes()[:header+748], 0o644); err != nil {
		return err
	}
	for name, text := range map[string][]byte{"qkv.safetensors": b.Bytes(), "junk.safetensors": []byte("not a file of tensors"), "damaged.profile": []byte("damaged\n")} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// guideBackend writes the guide's backend, with its intended mistake, as a separate module.
func guideBackend(dir, repository string) error {
	if err := guideModule(dir, repository, map[string]string{"mine.go": "examples/backend/mine.go"}); err != nil {
		return err
	}
	code, err := os.ReadFile(filepath.Join(dir, "mine.go"))
	if err != nil {
		return err
	}
	mistaken := strings.Replace(string(code), "if lo < hi {", "{", 1)
	if err := os.WriteFile(filepath.Join(dir, "mine.go"), []byte(mistaken), 0o644); err != nil {
		return err
	}
	test := "package mine_test\n\nimport (\n\t\"testing\"\n\n\t\"example.com/mine\"\n\t\"github.com/flashkit-go/flashkit/conformance\"\n)\n\nfunc TestConformance(t *testing.T) { conformance.Run(t, mine.New()) }\n"
	return os.WriteFile(filepath.Join(dir, "mine_test.go"), []byte(test), 0o644)
}

// guideModule creates a module that uses this repository in place of the published module, with
// copies of some files.
func guideModule(dir, repository string, files map[string]string) error {
	mod, err := os.ReadFile(filepath.Join(repository, "go.mod"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	_, requires, _ := strings.Cut(string(mod), "\n")
	text := "module example.com/" + filepath.Base(dir) + "\n" + requires + "\nrequire github.com/flashkit-go/flashkit v0.0.0\nreplace github.com/flashkit-go/flashkit => " + repository + "\n"
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(text), 0o644); err != nil {
		return err
	}
	files["go.sum"] = "go.sum"
	for to, from := range files {
		text, err := os.ReadFile(filepath.Join(repository, from))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, to), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
