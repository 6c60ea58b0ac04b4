package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/safetensors"
)

// An outputFile is written beside its name and renamed at the end, so that
// nobody sees half of it.
type outputFile struct {
	path string
	temp *os.File
}

// createOutput prepares to write path, which must not be one of the inputs. It
// finds out now whether the folder can be written.
func createOutput(path string, inputs []string) (*outputFile, error) {
	target, err := outputPath(path, inputs)
	if err != nil {
		return nil, err
	}
	temp, err := os.CreateTemp(filepath.Dir(target), "."+filepath.Base(target)+".*")
	if err != nil {
		return nil, fmt.Errorf("--out %s: %w", path, errors.Unwrap(err))
	}
	unfinished.add(temp.Name())
	return &outputFile{target, temp}, nil
}

// outputPath returns where to write: path, or the regular file that it links to.
func outputPath(path string, inputs []string) (string, error) {
	if path == stdStream {
		return "", errors.New("--out -: must name a file, as the report goes to the standard output; ./- is a file of that name")
	}
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return path, nil
	}
	target, err := filepath.EvalSymlinks(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("--out %s: a link to a file that does not exist", path)
	}
	if err != nil {
		return "", fmt.Errorf("--out: %w", err)
	}
	out, err := os.Stat(target)
	if err != nil {
		return "", fmt.Errorf("--out: %w", err)
	}
	if !out.Mode().IsRegular() {
		return "", fmt.Errorf("--out %s: not a regular file", path)
	}
	for _, arg := range inputs {
		_, in := splitArg(arg)
		if info, err := os.Stat(in); err == nil && os.SameFile(info, out) {
			return "", fmt.Errorf("--out %s: would overwrite the input %s", path, in)
		}
	}
	return target, nil
}

// discard removes what is there of an output that was not committed.
func (o *outputFile) discard() {
	if o == nil || o.temp == nil {
		return
	}
	o.temp.Close()
	o.remove()
}

func (o *outputFile) remove() {
	os.Remove(o.temp.Name())
	unfinished.forget(o.temp.Name())
	o.temp = nil
}

// commit writes the file and moves it to its name.
func (o *outputFile) commit(write func(io.Writer) error) error {
	w := bufio.NewWriter(o.temp)
	err := write(w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = o.temp.Chmod(0o644)
	}
	if closed := o.temp.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(o.temp.Name(), o.path)
	}
	if o.remove(); err != nil {
		return fmt.Errorf("--out %s: %w", o.path, err)
	}
	return nil
}

// eachOutput calls f with every tensor that the passes write, under its name in files.
func eachOutput(p *flashkit.Problem, args *flashkit.Args, backward bool, f func(name string, a *flashkit.Argument, t *flashkit.Tensor)) {
	for _, a := range flashkit.Arguments() {
		if writes(&a, p, backward) {
			f(strings.ToLower(a.Name), &a, a.Of(args))
		}
	}
}

// file returns the outputs as a safetensors file, in the layout of the input;
// lse has rank 3 and dsink rank 1.
func (w *work) file(r *outcome) (*safetensors.File, error) {
	p := w.problem
	f := &safetensors.File{Metadata: map[string]string{"problem": p.String(), "kernel": r.Kernel, "layout": string(w.layout)}}
	if r.ForwardKernel != "" {
		f.Metadata["forward_kernel"] = r.ForwardKernel
	}
	var failed error
	eachOutput(&p, &w.args, w.backward, func(name string, a *flashkit.Argument, t *flashkit.Tensor) {
		encode := safetensors.Encode
		if w.layout.of(a.Name) == bshd {
			encode = safetensors.EncodeBSHD
		}
		x, err := encode(name, *t)
		failed = errors.Join(failed, err)
		switch a.Name {
		case "LSE":
			x.Shape = x.Shape[:3]
		case "DSink":
			x.Shape = x.Shape[1:2]
		}
		f.Tensors = append(f.Tensors, x)
	})
	return f, failed
}
