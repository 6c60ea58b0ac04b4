// Package strict reads JSON files of other programs, such as the settings of a model. A key of an
// object that was not read might change results: Done refuses it by name. Errors are sticky, and
// name the file, the path of the key and its value.
package strict

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/foreign"
)

// maxDepth is the deepest nesting of objects.
const maxDepth = 16

// A File has the name of a file and the first error of its content.
type File struct {
	Name string
	Err  error
}

// Fail sets the error of a path, unless an error is already set.
func (f *File) Fail(path, format string, args ...any) {
	if f.Err == nil {
		f.Err = fmt.Errorf("%s: %s", f.where(path), fmt.Sprintf(format, args...))
	}
}

func (f *File) where(path string) string {
	if path == "" {
		return f.Name
	}
	return f.Name + ": " + path
}

// Into unmarshals the value of a path. It fails for null.
func (f *File) Into(path string, value json.RawMessage, to any, kind string) bool {
	if string(value) == "null" || json.Unmarshal(value, to) != nil {
		f.Fail(path, "must be %s, not %s", kind, shortened(Compact(value)))
		return false
	}
	return true
}

// Object returns the object of a path. A value that is no object is an error. The text of depth 0
// may be anything; values of a greater depth are valid JSON, as they are parts of it.
func (f *File) Object(path string, value json.RawMessage, depth int) *Object {
	o := &Object{File: f, path: path, Depth: depth, keys: map[string]json.RawMessage{}, read: map[string]bool{}}
	if depth == 0 {
		if err := Valid(f.Name, value); err != nil {
			f.Err = cmp.Or(f.Err, err)
			return o
		}
	}
	if depth > maxDepth {
		f.Fail(path, "is nested deeper than %d", maxDepth)
	} else if !o.split(value) {
		f.Fail(path, "must be a JSON object, not %s", shortened(Compact(value)))
	}
	return o
}

// Read returns the content of a file of at most the given number of bytes.
func Read(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file", path)
	case info.Size() > most:
		return nil, fmt.Errorf("%s: %d bytes are more than the limit of %d", path, info.Size(), most)
	}
	b, err := os.ReadFile(path)
	if other := foreign.Format(b); strings.Contains(other, "Git LFS") {
		return nil, fmt.Errorf("%s: the file is %s", path, other)
	}
	return b, err
}

// Valid returns an error unless text is JSON. The error names the format of a file that is something
// else.
func Valid(file string, text []byte) error {
	var x json.RawMessage
	err := json.Unmarshal(text, &x)
	if err == nil {
		return nil
	}
	if other := foreign.Format(text); other != "" && text[0] != '{' && text[0] != '[' {
		return fmt.Errorf("%s: the file is %s", file, other)
	}
	return fmt.Errorf("%s: %w", file, err)
}

// Open reads the object of a file. If the file does not exist, Open returns an object without keys,
// and false.
func Open(path string, most int64) (*Object, bool, error) {
	text, err := Read(path, most)
	if errors.Is(err, fs.ErrNotExist) {
		return Empty(path), false, nil
	}
	if err != nil {
		return nil, false, err
	}
	o, err := Parse(path, text)
	return o, true, err
}

// Parse reads the object of a text. The object keeps the text.
func Parse(file string, text []byte) (*Object, error) {
	o := (&File{Name: file}).Object("", text, 0)
	return o, o.Err
}

// Empty returns the object of a file without keys.
func Empty(file string) *Object { return (&File{Name: file}).Object("", json.RawMessage("{}"), 0) }

// Compact returns a value without white space.
func Compact(value json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, value) != nil {
		return string(value)
	}
	return b.String()
}

// Shown returns the start of an untrusted text, escaped for an error.
func Shown(text string) string {
	quoted := fmt.Sprintf("%+.60q", text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// shortened is Shown, with dots if the text is longer.
func shortened(text string) string {
	if len(text) > 60 {
		return Shown(text) + "..."
	}
	return Shown(text)
}

// problem returns an error with a value.
func problem(where string, value json.RawMessage, format string, args ...any) error {
	text := "nothing"
	if value != nil {
		text = Shown(Compact(value))
	}
	return &flashkit.ProblemError{Field: where, Value: text, Reason: fmt.Sprintf(format, args...)}
}
