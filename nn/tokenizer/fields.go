package tokenizer

import (
	"encoding/json"
	"fmt"

	"github.com/flashkit-go/flashkit/internal/strict"
)

// fields are the keys of a JSON object.
type fields struct{ *strict.Object }

// objectOf returns the fields of an object.
func objectOf(r *strict.File, path string, value json.RawMessage, depth int) *fields {
	return &fields{r.Object(path, value, depth)}
}

// inner returns the fields of an object within f, which the caller must check with Done.
func (f *fields) inner(key string, value json.RawMessage) *fields {
	return objectOf(f.File, f.At(key), value, f.Depth+1)
}

// fail sets the error of a key.
func (f *fields) fail(key, format string, args ...any) { f.Fail(f.At(key), format, args...) }

// take returns the value of a key. It returns false if the key is missing or null.
func (f *fields) take(key string) (json.RawMessage, bool) {
	v, ok := f.Value(key)
	return v, ok && string(v) != "null"
}

// into unmarshals the value of a key.
func (f *fields) into(key string, value json.RawMessage, to any, kind string) bool {
	return f.Into(f.At(key), value, to, kind)
}

// need returns the value of a key that must not be missing.
func (f *fields) need(key string) (json.RawMessage, bool) {
	v, ok := f.take(key)
	if !ok {
		f.fail(key, "is missing")
	}
	return v, ok
}

// given reports whether the object has a key, which may be null.
func (f *fields) given(key string) bool {
	_, ok := f.Raw(key)
	return ok
}

// text returns a string that must not be missing.
func (f *fields) text(key string) (s string) {
	if v, ok := f.need(key); ok {
		f.into(key, v, &s, "a string")
	}
	return s
}

// flag returns a boolean, or missing if the key is missing.
func (f *fields) flag(key string, missing bool) bool {
	if v, ok := f.take(key); ok {
		f.into(key, v, &missing, "true or false")
	}
	return missing
}

// whole returns a number that must not be missing and is at least 0 and less than 1<<31 - 1.
func (f *fields) whole(key string) (n int32) {
	if v, ok := f.need(key); ok && f.into(key, v, &n, "a whole number") && !validID(n) {
		f.fail(key, "is out of range: %d", n)
	}
	return n
}

// object returns the fields of an object that must not be missing.
func (f *fields) object(key string) *fields {
	v, ok := f.need(key)
	if !ok {
		v = json.RawMessage("{}")
	}
	return f.inner(key, v)
}

// list returns the elements of a list that must not be missing.
func (f *fields) list(key string) (list []json.RawMessage) {
	if v, ok := f.need(key); ok {
		f.into(key, v, &list, "a list")
	}
	return list
}

// objects calls each for the elements of a list of objects, and checks that each read all keys.
func (f *fields) objects(key string, each func(*fields)) {
	for i, v := range f.list(key) {
		if f.Err != nil {
			return
		}
		x := objectOf(f.File, f.At(key)+fmt.Sprintf("[%d]", i), v, f.Depth+1)
		each(x)
		x.Done()
	}
}

// unsupported fails for the key type.
func (f *fields) unsupported(kind string) { f.fail("type", "%.60q is not supported", kind) }
