package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// maxDepth is the deepest nesting of sequences in a file.
const maxDepth = 16

// A reader reads a JSON file and keeps the first error.
type reader struct {
	file string // name of the file, for errors
	err  error
}

func (r *reader) fail(path, format string, args ...any) {
	if r.err == nil {
		if path != "" {
			path = ": " + path
		}
		r.err = fmt.Errorf("%s%s: %s", r.file, path, fmt.Sprintf(format, args...))
	}
}

// into unmarshals a value. It fails for null.
func (r *reader) into(path string, value json.RawMessage, to any, kind string) bool {
	if string(value) == "null" || json.Unmarshal(value, to) != nil {
		r.fail(path, "must be %s, not %s", kind, shown(value))
		return false
	}
	return true
}

// shown returns a value for an error, shortened.
func shown(value json.RawMessage) string {
	s := strings.Join(strings.Fields(string(value)), " ")
	if len(s) > 60 {
		return strings.ToValidUTF8(s[:60], "") + "..."
	}
	return s
}

// fields are the keys of a JSON object that are not read yet.
type fields struct {
	r     *reader
	path  string
	depth int
	rest  map[string]json.RawMessage
}

// object returns the fields of an object.
func (r *reader) object(path string, value json.RawMessage, depth int) *fields {
	f := &fields{r: r, path: path, depth: depth}
	if depth > maxDepth {
		r.fail(path, "is nested deeper than %d", maxDepth)
	} else {
		r.into(path, value, &f.rest, "an object")
	}
	return f
}

// at returns the path of a key.
func (f *fields) at(key string) string {
	switch {
	case f.path == "":
		return key
	case key == "" || key[0] == '[' && strings.TrimLeft(key[1:], "0123456789") == "]":
		return f.path + key
	}
	return f.path + "." + key
}

func (f *fields) fail(key, format string, args ...any) { f.r.fail(f.at(key), format, args...) }

// take returns the value of a key. It returns false if the key is missing or null.
func (f *fields) take(key string) (json.RawMessage, bool) {
	v, ok := f.rest[key]
	delete(f.rest, key)
	return v, ok && string(v) != "null"
}

// need returns the value of a key that must not be missing.
func (f *fields) need(key string) (json.RawMessage, bool) {
	v, ok := f.take(key)
	if !ok {
		f.fail(key, "is missing")
	}
	return v, ok
}

// text returns a string that must not be missing.
func (f *fields) text(key string) (s string) {
	if v, ok := f.need(key); ok {
		f.r.into(f.at(key), v, &s, "a string")
	}
	return s
}

// flag returns a boolean, or missing if the key is missing.
func (f *fields) flag(key string, missing bool) bool {
	if v, ok := f.take(key); ok {
		f.r.into(f.at(key), v, &missing, "true or false")
	}
	return missing
}

// whole returns a number that must not be missing and is at least 0 and less than 1<<31 - 1.
func (f *fields) whole(key string) (n int32) {
	if v, ok := f.need(key); ok && f.r.into(f.at(key), v, &n, "a whole number") && !validID(n) {
		f.fail(key, "is out of range: %d", n)
	}
	return n
}

// object returns the fields of an object that must not be missing.
func (f *fields) object(key string) *fields {
	v, ok := f.need(key)
	if !ok {
		return &fields{r: f.r, path: f.at(key)}
	}
	return f.r.object(f.at(key), v, f.depth+1)
}

// list returns the elements of a list that must not be missing.
func (f *fields) list(key string) (list []json.RawMessage) {
	if v, ok := f.need(key); ok {
		f.r.into(f.at(key), v, &list, "a list")
	}
	return list
}

// objects calls each for the elements of a list of objects, and checks that each read all keys.
func (f *fields) objects(key string, each func(*fields)) {
	for i, v := range f.list(key) {
		if f.r.err != nil {
			return
		}
		x := f.r.object(f.at(key)+fmt.Sprintf("[%d]", i), v, f.depth+1)
		each(x)
		x.done()
	}
}

// harmless drops keys that do not change ids.
func (f *fields) harmless(keys ...string) {
	for _, key := range keys {
		delete(f.rest, key)
	}
}

// unsupported fails for the key type.
func (f *fields) unsupported(kind string) { f.fail("type", "%.60q is not supported", kind) }

// done fails if a key was not read.
func (f *fields) done() {
	if f.r.err != nil || len(f.rest) == 0 {
		return
	}
	var keys []string
	for key := range f.rest {
		keys = append(keys, key)
	}
	key := slices.Min(keys)
	f.fail(key, "the key is not supported; its value is %s", shown(f.rest[key]))
}
