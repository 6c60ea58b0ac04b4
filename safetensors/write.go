package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf8"
)

// Write writes the file to w, with the tensors in the order of f.Tensors. Equal files give equal
// bytes. If the file violates the format, Write returns an error and writes nothing.
func (f *File) Write(w io.Writer) error {
	header, err := f.header()
	if err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	if _, err := w.Write(header); err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	for _, t := range f.Tensors {
		if _, err := w.Write(t.Data); err != nil {
			return fmt.Errorf("safetensors: tensor %.60q: %w", t.Name, err)
		}
	}
	return nil
}

// header returns the first bytes of the file: the length of the header, and the header.
func (f *File) header() ([]byte, error) {
	if err := f.checkText(); err != nil {
		return nil, err
	}
	b := append(make([]byte, lengthSize), '{')
	if f.Metadata != nil {
		b = appendMember(b, metadataKey, f.Metadata) // encoding/json sorts the keys
	}
	begin := 0
	for _, t := range f.Tensors {
		if err := t.check(); err != nil {
			return nil, fmt.Errorf("tensor %.60q: %w", t.Name, err)
		}
		end := begin + len(t.Data)
		if end < begin { // tensors may share data, so the sum can exceed memory
			return nil, fmt.Errorf("tensor %.60q: offset overflows int", t.Name)
		}
		b = appendMember(b, t.Name, struct {
			DType   string `json:"dtype"`
			Shape   []int  `json:"shape"`
			Offsets [2]int `json:"data_offsets"`
		}{t.DType, append([]int{}, t.Shape...), [2]int{begin, end}}) // a nil shape would become null
		begin = end
	}
	b = append(bytes.TrimSuffix(b, []byte(",")), '}')
	for len(b)%8 != 0 {
		b = append(b, ' ')
	}
	n := len(b) - lengthSize
	if n > maxHeader {
		return nil, fmt.Errorf("header length %d is above the limit of %d", n, maxHeader)
	}
	binary.LittleEndian.PutUint64(b, uint64(n))
	return b, nil
}

// checkText checks the names of the tensors and the metadata.
func (f *File) checkText() error {
	seen := map[string]bool{metadataKey: true}
	for _, t := range f.Tensors {
		if seen[t.Name] {
			return fmt.Errorf("duplicate or reserved name %.60q", t.Name)
		}
		seen[t.Name] = true
		if !utf8.ValidString(t.Name) {
			return fmt.Errorf("tensor name %.60q is not valid UTF-8", t.Name)
		}
	}
	for key, value := range f.Metadata {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			return fmt.Errorf("%s: %.60q: %.60q is not valid UTF-8", metadataKey, key, value)
		}
	}
	return nil
}

// appendMember appends a member of a JSON object and a comma.
func appendMember(b []byte, name string, value any) []byte {
	b = append(appendJSON(b, name), ':')
	return append(appendJSON(b, value), ',')
}

func appendJSON(b []byte, value any) []byte {
	buf := bytes.NewBuffer(b)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)                           // keep names unchanged
	_ = enc.Encode(value)                              // cannot fail: the values are strings and numbers
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")) // Encode ends a value with a new line
}
