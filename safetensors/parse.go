package safetensors

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/flashkit-go/flashkit/internal/foreign"
)

// An entry is a tensor's description in the header.
type entry struct {
	Tensor     // without its data
	begin, end int
}

// Parse returns the content of a file. The data of the tensors aliases b, which must not change
// while the tensors are in use. Any violation of the format is an error.
func Parse(b []byte) (*File, error) {
	f, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	return f, nil
}

func parse(b []byte) (*File, error) {
	n, err := headerLength(b, int64(len(b)))
	if err != nil {
		return nil, err
	}
	data := b[lengthSize+n:]
	metadata, entries, err := layout(string(b[lengthSize:lengthSize+n]), len(data))
	if err != nil {
		return nil, err
	}
	tensors := make([]Tensor, len(entries))
	for i, e := range entries {
		tensors[i] = e.Tensor
		tensors[i].Data = data[e.begin:e.end:e.end]
	}
	return &File{Metadata: metadata, Tensors: tensors}, nil
}

// Read returns the content of a file of the given size. Each tensor's data has memory of its own,
// so that the data of unused tensors can be freed. Any violation of the format is an error.
func Read(r io.ReaderAt, size int64) (*File, error) {
	x, err := ReadIndex(r, size)
	if err != nil {
		return nil, err
	}
	f := &File{Metadata: x.Metadata, Tensors: x.Tensors}
	for i := range f.Tensors {
		if f.Tensors[i], err = x.Read(i); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// An Index has the tensors of a file without their data, which Read reads.
type Index struct {
	Metadata map[string]string // as in File
	Tensors  []Tensor          // as in File, without Data
	file     io.ReaderAt
	offsets  []int64
	sizes    []int
}

// ReadIndex returns the Index of a file of the given size. It reads the header alone. Any violation
// of the format is an error.
func ReadIndex(r io.ReaderAt, size int64) (*Index, error) {
	x, err := readIndex(r, size)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	return x, nil
}

// Read returns tensor i with its data, in memory of its own.
func (x *Index) Read(i int) (Tensor, error) {
	t := x.Tensors[i]
	t.Data = make([]byte, x.sizes[i])
	if err := readAt(x.file, t.Data, x.offsets[i]); err != nil {
		return t, fmt.Errorf("safetensors: tensor %.60q: %w", t.Name, err)
	}
	return t, nil
}

// Size returns the number of bytes of tensor i.
func (x *Index) Size(i int) int { return x.sizes[i] }

func readIndex(r io.ReaderAt, size int64) (*Index, error) {
	const beginning = 4096 // enough to recognize another format
	if size < 0 || size > math.MaxInt {
		return nil, fmt.Errorf("file has %d bytes, want at most %d", size, math.MaxInt)
	}
	start := make([]byte, min(size, beginning))
	if err := readAt(r, start, 0); err != nil {
		return nil, err
	}
	n, err := headerLength(start, size)
	if err != nil {
		return nil, err
	}
	header := make([]byte, n)
	if err := readAt(r, header, lengthSize); err != nil {
		return nil, err
	}
	data := lengthSize + n
	metadata, entries, err := layout(string(header), int(size)-data)
	if err != nil {
		return nil, err
	}
	x := &Index{Metadata: metadata, file: r}
	for _, e := range entries {
		x.Tensors = append(x.Tensors, e.Tensor)
		x.offsets = append(x.offsets, int64(data+e.begin))
		x.sizes = append(x.sizes, e.end-e.begin)
	}
	return x, nil
}

// readAt reads len(b) bytes.
func readAt(r io.ReaderAt, b []byte, offset int64) error {
	if n, err := r.ReadAt(b, offset); n < len(b) {
		return fmt.Errorf("%d of %d bytes at %d: %w", n, len(b), offset, err)
	}
	return nil
}

// layout returns the metadata of a header and its tensors in the order of their data, of the given
// number of bytes.
func layout(header string, data int) (map[string]string, []entry, error) {
	metadata, entries, err := parseHeader(header)
	if err != nil {
		return nil, nil, err
	}
	return metadata, entries, place(entries, lengthSize+len(header), data)
}

// headerLength returns the length of the header of a file of the given size, which begins with b.
func headerLength(b []byte, size int64) (int, error) {
	if len(b) < lengthSize {
		return 0, fmt.Errorf("file has %d bytes, want at least %d", len(b), lengthSize)
	}
	n, rest := binary.LittleEndian.Uint64(b), size-lengthSize
	if n > maxHeader || n > uint64(rest) {
		if other := foreign.Format(b); other != "" {
			return 0, fmt.Errorf("the file is %s", other)
		}
	}
	if n > maxHeader {
		return 0, fmt.Errorf("header length %d is above the limit of %d: the file begins with %q, as no safetensors file does", n, maxHeader, b[:lengthSize])
	}
	if n > uint64(rest) {
		return 0, fmt.Errorf("header length %d is above the %d bytes that follow it: the file is truncated, or no safetensors file", n, rest)
	}
	return int(n), nil
}

func parseHeader(header string) (metadata map[string]string, entries []entry, err error) {
	if !utf8.ValidString(header) {
		return nil, nil, errors.New("header is not valid UTF-8")
	}
	if !strings.HasPrefix(header, "{") {
		return nil, nil, fmt.Errorf("header starts with %.20q, want a JSON object", header)
	}
	s := scanner{rest: header}
	seen := map[string]bool{}
	entries = make([]entry, 0, strings.Count(header, `"data_offsets"`)) // the number of tensors in an ordinary file
	err = s.object(func(name string) (err error) {
		if seen[name] {
			return fmt.Errorf("duplicate name %.60q", name)
		}
		seen[name] = true
		if name == metadataKey {
			metadata, err = parseMetadata(&s)
			return err
		}
		e, err := parseEntry(&s, name)
		if err != nil {
			return fmt.Errorf("tensor %.60q: %w", name, err)
		}
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	if strings.Trim(s.rest, " ") != "" {
		return nil, nil, fmt.Errorf("header has %.20q after the JSON object", s.rest)
	}
	return metadata, entries, nil
}

func parseMetadata(s *scanner) (map[string]string, error) {
	// The first pass counts the keys, because a growing map would allocate far more bytes than its
	// text has.
	ahead, n := *s, 0
	err := ahead.object(func(string) error {
		n++
		_, err := ahead.string()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", metadataKey, err)
	}
	metadata := make(map[string]string, n)
	return metadata, s.object(func(key string) (err error) {
		if _, ok := metadata[key]; ok {
			return fmt.Errorf("%s: duplicate key %.60q", metadataKey, key)
		}
		metadata[key], err = s.string()
		return err
	})
}

func parseEntry(s *scanner, name string) (entry, error) {
	e := entry{Tensor: Tensor{Name: name}}
	var offsets []int
	err := s.object(func(field string) (err error) {
		var again bool
		switch field {
		case "dtype":
			again = e.DType != ""
			e.DType, err = s.string()
			if err == nil && !isTypeName(e.DType) {
				err = fmt.Errorf("%.60q is not the name of a type", e.DType)
			}
		case "shape":
			again = e.Shape != nil
			e.Shape, err = s.ints()
		case "data_offsets":
			again = offsets != nil
			offsets, err = s.ints()
		default:
			return fmt.Errorf("unknown field %.60q", field)
		}
		if again {
			return fmt.Errorf("duplicate field %.60q", field)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
		return nil
	})
	if err != nil {
		return e, err
	}
	return e, e.locate(offsets)
}

// isTypeName reports whether s could be the name of a type, in this or a later version of the
// format. Type names consist of letters, digits and underscores.
func isTypeName(s string) bool {
	const most = 32
	other := func(c rune) bool {
		return c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	}
	return s != "" && len(s) <= most && strings.IndexFunc(s, other) < 0
}

// locate checks that all fields are present and that the offsets fit the shape.
func (e *entry) locate(offsets []int) error {
	switch {
	case e.DType == "":
		return errors.New("dtype is missing")
	case e.Shape == nil:
		return errors.New("shape is missing")
	case offsets == nil:
		return errors.New("data_offsets is missing")
	case len(offsets) != 2:
		return fmt.Errorf("data_offsets has %d numbers, want 2", len(offsets))
	}
	e.begin, e.end = offsets[0], offsets[1]
	if e.begin > e.end {
		return fmt.Errorf("data_offsets %d are reversed", offsets)
	}
	if !known(e.DType) {
		return nil // only the offsets give the size of a tensor of unknown type
	}
	size, err := byteSize(e.DType, e.Shape)
	switch {
	case err != nil:
		return err
	case e.end-e.begin != size:
		return fmt.Errorf("data_offsets %d span %d bytes, want %d for the dtype and shape", offsets, e.end-e.begin, size)
	}
	return nil
}

// place sorts the entries by offset. Their parts must cover the data, of the given number of bytes
// after the start, without gaps or overlaps.
func place(entries []entry, start, data int) error {
	// Empty tensors may share an offset. A stable sort keeps their order.
	slices.SortStableFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end))
	})
	next, last := 0, 0
	for _, e := range entries {
		last = max(last, e.end)
	}
	if last > data {
		return fmt.Errorf("the file is cut: it has %d bytes, but its tensors end at byte %d", start+data, uint64(start)+uint64(last))
	}
	for _, e := range entries {
		offsets := [2]int{e.begin, e.end}
		switch {
		case e.begin < next:
			return fmt.Errorf("tensor %.60q: data_offsets %d overlap the tensor that ends at %d", e.Name, offsets, next)
		case e.begin > next:
			return fmt.Errorf("tensor %.60q: data_offsets %d leave a hole after %d", e.Name, offsets, next)
		}
		next = e.end
	}
	if next != data {
		return fmt.Errorf("the tensors end at %d but the data has %d bytes", next, data)
	}
	return nil
}
