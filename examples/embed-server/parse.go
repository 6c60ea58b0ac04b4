package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/flashkit-go/flashkit/internal/admission"
)

// A refusal is an invalid request. It names the field, and is sent with status 400 or the given
// one.
type refusal struct {
	param, reason string
	status        int
}

func (r *refusal) Error() string {
	if r.param == "" {
		return r.reason
	}
	return r.param + ": " + r.reason
}

func (r *refusal) Unwrap() error { return admission.ErrBad }

func bad(param, format string, args ...any) error {
	return &refusal{param: param, reason: fmt.Sprintf(format, args...)}
}

// fields maps the keys of a JSON object to functions that decode their values.
type fields map[string]func(d *json.Decoder) error

// value returns a function that decodes a value into x. null leaves x unchanged.
func value(x any) func(*json.Decoder) error {
	return func(d *json.Decoder) error { return d.Decode(x) }
}

// parse decodes a body. Unknown keys, repeated keys and text after the object are errors.
func parse(body []byte, f fields) error {
	if !utf8.Valid(body) {
		return bad("", "the body is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if err := object(d, "", f); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return bad("", "there is something after the JSON object")
	}
	return nil
}

// object decodes an object. The path begins the names of its fields in errors.
func object(d *json.Decoder, path string, f fields) error {
	if t, err := d.Token(); err != nil {
		return bad(path, "no JSON: %v", err)
	} else if t != json.Delim('{') {
		return bad(path, "must be a JSON object")
	}
	if path != "" {
		path += "."
	}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return bad("", "no JSON: %v", err)
		}
		key := t.(string) // More and Token check that an object's keys are strings
		decode, known := f[key]
		switch {
		case !known:
			return bad(path+key, "is not supported")
		case seen[key]:
			return bad(path+key, "appears twice")
		}
		seen[key] = true
		var r *refusal
		var wrong *json.UnmarshalTypeError
		switch err := decode(d); {
		case errors.As(err, &r):
			return err
		case errors.As(err, &wrong):
			return bad(path+key, "must be %s, not %s", kinds[wrong.Type.Kind().String()], wrong.Value)
		case err != nil:
			return bad(path+key, "no JSON: %v", err)
		}
	}
	if _, err := d.Token(); err != nil {
		return bad("", "no JSON: %v", err)
	}
	return nil
}

// kinds are the names of Go's kinds in errors.
var kinds = map[string]string{"string": "a string", "int": "an integer", "bool": "true or false"}

// texts returns a function that decodes an array of at most the given number of texts. If objects
// is true, a text may be an object with the key text. Otherwise one string may replace the array.
func texts(x *[]string, param string, most int, objects bool) func(*json.Decoder) error {
	return func(d *json.Decoder) error {
		t, err := d.Token()
		if err != nil {
			return err
		}
		if text, ok := t.(string); ok && !objects {
			*x = []string{text}
			return nil
		}
		if t != json.Delim('[') {
			return bad(param, "must be an array of strings%s", map[bool]string{false: ", or a string"}[objects])
		}
		for d.More() {
			name := fmt.Sprintf("%s[%d]", param, len(*x))
			if len(*x) == most {
				return bad(param, "has more than %d texts", most)
			}
			text, err := element(d, name, objects)
			if err != nil {
				return err
			}
			*x = append(*x, text)
		}
		_, err = d.Token()
		return err
	}
}

// element decodes one text.
func element(d *json.Decoder, name string, objects bool) (text string, err error) {
	var raw json.RawMessage
	if err := d.Decode(&raw); err != nil {
		return "", err
	}
	switch c := raw[0]; {
	case c == '"':
		return text, json.Unmarshal(raw, &text)
	case c == '{' && objects:
		found := false
		d := json.NewDecoder(bytes.NewReader(raw))
		err := object(d, name, fields{"text": func(d *json.Decoder) error { found = true; return d.Decode(&text) }})
		if err == nil && !found {
			err = bad(name+".text", "is missing")
		}
		return text, err
	case !objects && (c == '[' || c == '-' || '0' <= c && c <= '9'):
		return "", bad(name, "arrays of tokens are not supported; send strings")
	case objects:
		return "", bad(name, "must be a string, or an object with the key text")
	}
	return "", bad(name, "must be a string")
}
