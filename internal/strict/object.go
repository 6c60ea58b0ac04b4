package strict

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// An Object has the keys of a JSON object, and marks the keys that were read.
type Object struct {
	*File
	Depth int // of nested objects

	path  string
	keys  map[string]json.RawMessage
	order []string // keys as in the file
	read  map[string]bool
	inner []*Object // whose keys Done checks too
}

// At returns the path of a key. A key such as [2] is an element of a list.
func (o *Object) At(key string) string {
	key = Shown(key)
	switch {
	case o.path == "" || key == "":
		return o.path + key
	case key[0] == '[' && strings.TrimLeft(key[1:], "0123456789") == "]":
		return o.path + key
	}
	return o.path + "." + key
}

// Problem returns an error of a key and a value.
func (o *Object) Problem(key string, value json.RawMessage, format string, args ...any) error {
	return problem(o.where(o.At(key)), value, format, args...)
}

// Refuse sets the error of a key with its value, unless an error is already set.
func (o *Object) Refuse(key, format string, args ...any) {
	if o.Err == nil {
		o.Err = o.Problem(key, o.keys[key], format, args...)
	}
}

// Raw returns the value of a key and whether the object has the key. It does not mark the key.
func (o *Object) Raw(key string) (json.RawMessage, bool) {
	x, ok := o.keys[key]
	return x, ok
}

// Value is Raw, and marks the key as read.
func (o *Object) Value(key string) (json.RawMessage, bool) {
	o.read[key] = true
	return o.Raw(key)
}

// Has reports whether the object has the key, with a value other than null. It marks null as read.
func (o *Object) Has(key string) bool {
	x, ok := o.keys[key]
	if ok && string(x) == "null" {
		o.read[key] = true
		return false
	}
	return ok
}

// Only fails unless the key is missing or has one of the given values, which are JSON without white
// space.
func (o *Object) Only(key string, values ...string) {
	if x, ok := o.Value(key); ok && !slices.Contains(values, Compact(x)) {
		o.Refuse(key, "must be %s", strings.Join(values, " or "))
	}
}

// Ignore marks keys without effect on results as read.
func (o *Object) Ignore(keys ...string) {
	for _, key := range keys {
		o.read[key] = true
	}
}

// Unread returns the keys that were not read, as in the file.
func (o *Object) Unread() []string {
	return slices.DeleteFunc(slices.Clone(o.order), func(key string) bool { return o.read[key] })
}

// Inner returns the object of a key, which Done checks too. A missing key and null give an object
// without keys.
func (o *Object) Inner(key string) *Object {
	x, ok := o.Value(key)
	if !ok || string(x) == "null" {
		x = json.RawMessage("{}")
	}
	n := o.Object(o.At(key), x, o.Depth+1)
	o.inner = append(o.inner, n)
	return n
}

// Done returns the first error of the file, or an error for a key that was neither read nor is one of
// the harmless names.
func (o *Object) Done(harmless ...string) error {
	for _, key := range o.Unread() {
		if !slices.Contains(harmless, key) {
			o.Refuse(key, "the key is unknown, and may change results")
		}
	}
	for _, n := range o.inner {
		n.Done(harmless...)
	}
	return o.Err
}

// split sets the keys to the members of valid JSON, whose values alias text. It returns false if the
// text is no object. A repeated key is an error.
func (o *Object) split(text []byte) bool {
	text = bytes.TrimSpace(text)
	if len(text) == 0 || text[0] != '{' {
		return false
	}
	depth, start, key, inValue := 0, 1, "", false
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
		case ':':
			if depth == 1 {
				json.Unmarshal(text[start:i], &key) // valid JSON has a string here
				start, inValue = i+1, true
			}
		case '}', ']':
			if depth--; depth == 0 && inValue {
				o.add(key, text[start:i:i])
			}
		case ',':
			if depth == 1 {
				o.add(key, text[start:i:i])
				start = i + 1
			}
		}
	}
	return true
}

func (o *Object) add(key string, value []byte) {
	value = bytes.TrimSpace(value)
	if _, twice := o.keys[key]; twice && o.Err == nil {
		o.Err = o.Problem(key, value, "must not be there twice")
	}
	o.keys[key] = value
	o.order = append(o.order, key)
}
