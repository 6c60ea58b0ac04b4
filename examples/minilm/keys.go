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

// A rule checks the value of a key, and stores the value if needed. For an invalid value, the rule
// returns an error with the allowed values.
type rule func(value json.RawMessage) error

// rules are the allowed keys of a JSON object and the rules for their values. Other keys are
// errors, because they may change the vectors.
type rules map[string]rule

// harmless is the rule for keys that do not affect the vectors. It accepts any value.
func harmless(json.RawMessage) error { return nil }

// harmlessKeys adds the given names as keys that do not affect the vectors.
func (r rules) harmlessKeys(names string) rules {
	for _, name := range strings.Fields(names) {
		r[name] = harmless
	}
	return r
}

// only returns a rule that accepts only the given values, which are JSON without white space.
func only(values ...string) rule {
	return func(value json.RawMessage) error {
		if slices.Contains(values, compact(value)) {
			return nil
		}
		return fmt.Errorf("must be %s", strings.Join(values, " or "))
	}
}

func both(a, b rule) rule {
	return func(value json.RawMessage) error {
		if err := a(value); err != nil {
			return err
		}
		return b(value)
	}
}

// into returns a rule that stores the value in *to. It accepts null only if T is a pointer type.
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

// object returns a rule that accepts a JSON object. The object's keys must satisfy r and include
// the required keys.
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

// list returns a rule that accepts a JSON list. The parameter is the rule for each element.
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

// A keyError is an error with the path and value of a JSON element.
type keyError struct {
	path, value string
	err         error
}

func (e *keyError) Error() string { return e.path + " = " + e.value + ": " + e.err.Error() }

// within returns err as a keyError. It adds key to the beginning of the path. key is a key of an
// object or an index in a list.
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

// check applies the rules to a JSON object and returns the object's keys.
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
		key := name.(string) // object keys are strings
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

// read applies a rule to the JSON of a file in dir. It reports whether the file exists.
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
