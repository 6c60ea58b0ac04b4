package main

import (
	"fmt"
	"regexp"
	"strings"
)

// A field is a field of a structure in flashkit.h. CType is its type in Python's ctypes, or "" for
// a tensor.
type field struct{ Name, CType string }

type header struct {
	Version       string // major.minor.patch
	Problem, Args []field
	Prefix, Cache []field // of fk_prefix and fk_cache_config
	Bits          []bit   // the bits of fk_problem.features
}

// A bit is the constant FK_<Name>, one bit of fk_problem.features.
type bit struct{ Name, Value string }

var (
	comments  = regexp.MustCompile(`(?s)/\*.*?\*/`)
	fieldLine = regexp.MustCompile(`(?m)^\s*(?:const )?(\w+) (\*?)(\w+);`)
	bitLine   = regexp.MustCompile(`FK_(\w+) = (\d+)`)
	version   = regexp.MustCompile(`(?m)^#define FK_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$`)
	bitsEnum  = regexp.MustCompile(`(?s)/\* Features of a problem.*?\};`)
)

var ctypes = map[string]string{
	"size_t": "c_size_t", "int32_t": "c_int32", "int64_t": "c_int64", "uint32_t": "c_uint32", "uint64_t": "c_uint64", "float": "c_float", "fk_tensor": "",
}

func parse(text string) (h *header, err error) {
	h = new(header)
	var numbers []string
	for _, m := range version.FindAllStringSubmatch(text, -1) {
		numbers = append(numbers, m[1])
	}
	if h.Version = strings.Join(numbers, "."); len(numbers) != 3 {
		return nil, fmt.Errorf("FK_VERSION is %q, and must have three parts", h.Version)
	}
	for _, m := range bitLine.FindAllStringSubmatch(comments.ReplaceAllString(bitsEnum.FindString(text)[2:], ""), -1) {
		h.Bits = append(h.Bits, bit{m[1], m[2]})
	}
	for _, s := range []struct {
		name string
		list *[]field
	}{{"fk_problem", &h.Problem}, {"fk_args", &h.Args}, {"fk_prefix", &h.Prefix}, {"fk_cache_config", &h.Cache}} {
		if *s.list, err = structure(text, s.name); err != nil {
			return nil, err
		}
	}
	return h, nil
}

func structure(text, name string) (list []field, err error) {
	_, text, began := strings.Cut(text, "typedef struct "+name+" {")
	text, _, ended := strings.Cut(text, "} "+name+";")
	if !began || !ended {
		return nil, fmt.Errorf("no structure %s", name)
	}
	for _, m := range fieldLine.FindAllStringSubmatch(comments.ReplaceAllString(text, ""), -1) {
		ctype, known := ctypes[m[1]]
		if m[2] != "" {
			ctype, known = "c_void_p", true
		}
		if !known {
			return nil, fmt.Errorf("%s.%s has type %s, which is none of ctypes", name, m[3], m[1])
		}
		list = append(list, field{m[3], ctype})
	}
	return list, nil
}

// hold returns an error if flashkit.h lacks a field or a bit that the lists l need.
func (h *header) hold(l *lists) error {
	has := map[string]bool{}
	for _, f := range h.Problem {
		has["fk_problem."+f.Name] = true
	}
	for _, f := range h.Args {
		has["fk_args."+f.Name] = true
	}
	for _, b := range h.Bits {
		has["FK_"+b.Name] = true
	}
	var want []string
	for _, x := range append(l.Numbers[:len(l.Numbers):len(l.Numbers)], l.Counts...) {
		want = append(want, "fk_problem."+x.Name)
	}
	for _, x := range l.Bools {
		want = append(want, "FK_"+strings.ToUpper(x.Name))
	}
	for _, t := range l.Slots {
		want = append(want, "fk_args."+t.C)
	}
	for _, name := range want {
		if !has[name] {
			return fmt.Errorf("has no %s; a new field goes to the end of its structure", name)
		}
	}
	return nil
}
