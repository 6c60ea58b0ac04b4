package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A rule takes the value of a key, or says what it must be.
type rule func(value json.RawMessage) error

// Rules are the keys that a JSON object may have. A key that is not among them is an error:
// it may change vectors.
type rules map[string]rule

// harmless takes any value: the key changes no vector.
func harmless(json.RawMessage) error { return nil }

// harmlessKeys adds keys that change no vector.
func (r rules) harmlessKeys(names string) rules {
	for _, name := range strings.Fields(names) {
		r[name] = harmless
	}
	return r
}

// only takes the given values, each JSON without white space.
func only(values ...string) rule {
	return func(value json.RawMessage) error {
		if slices.Contains(values, compact(value)) {
			return nil
		}
		return fmt.Errorf("must be %s", strings.Join(values, " or "))
	}
}

// both takes what two rules take.
func both(a, b rule) rule {
	return func(value json.RawMessage) error {
		if err := a(value); err != nil {
			return err
		}
		return b(value)
	}
}

// into sets a variable. Null is no value, but for a pointer.
func into[T any](to *T) rule {
	return func(value json.RawMessage) error {
		if compact(value) == "null" && !strings.HasPrefix(fmt.Sprintf("%T", *to), "*") {
			return fmt.Errorf("must be of type %T", *to)
		}
		if json.Unmarshal(value, to) != nil {
			return fmt.Errorf("must be of type %s", strings.TrimPrefix(fmt.Sprintf("%T", *to), "*"))
		}
		return nil
	}
}

// object takes an object of known keys, some of which must be there.
func object(r rules, required ...string) rule {
	return func(value json.RawMessage) error {
		seen, err := r.check(value)
		for _, key := range required {
			if err == nil && !seen[key] {
				err = within(key, json.RawMessage("nothing"), errors.New("the key is missing"))
			}
		}
		return err
	}
}

// list takes a list, each element of which another rule takes.
func list(each rule) rule {
	return func(value json.RawMessage) error {
		var elements []json.RawMessage
		if json.Unmarshal(value, &elements) != nil || elements == nil {
			return errors.New("must be a list")
		}
		for i, x := range elements {
			if err := each(x); err != nil {
				return within(fmt.Sprintf("[%d]", i), x, err)
			}
		}
		return nil
	}
}

// A keyError names a value within a file.
type keyError struct {
	path, value string
	err         error
}

func (e *keyError) Error() string { return e.path + " = " + e.value + ": " + e.err.Error() }

// within adds a key, or the place in a list, to an error.
func within(key string, value json.RawMessage, err error) error {
	var inner *keyError
	if !errors.As(err, &inner) {
		return &keyError{key, short(compact(value)), err}
	}
	if !strings.HasPrefix(inner.path, "[") {
		key += "."
	}
	return &keyError{key + inner.path, inner.value, inner.err}
}

// check holds an object to the rules, and returns the keys that it has.
func (r rules) check(value json.RawMessage) (seen map[string]bool, err error) {
	d := json.NewDecoder(bytes.NewReader(value))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return nil, errors.New("must be an object")
	}
	seen = map[string]bool{}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		key := name.(string) // an object has no others
		var x json.RawMessage
		if err := d.Decode(&x); err != nil {
			return nil, err
		}
		take := r[key]
		if take == nil {
			take = func(json.RawMessage) error { return errors.New("the key is unknown, and may change vectors") }
		}
		if seen[key] {
			take = func(json.RawMessage) error { return errors.New("the key must not be there twice") }
		}
		seen[key] = true
		if err := take(x); err != nil {
			return nil, within(short(key), x, err)
		}
	}
	return seen, nil
}

// read holds a file of a folder to a rule, and returns whether it is there.
func read(dir, name string, r rule) (bool, error) {
	name = filepath.Join(dir, name)
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	var value json.RawMessage
	if err == nil {
		err = json.Unmarshal(text, &value)
	}
	if err == nil {
		err = r(value)
	}
	if err != nil {
		return true, fmt.Errorf("%s: %w", name, err)
	}
	return true, nil
}

// compact returns JSON without white space.
func compact(value json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, value) != nil {
		return string(value)
	}
	return b.String()
}
