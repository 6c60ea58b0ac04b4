// Package sharedlib checks the file of a shared library before the dynamic loader maps it. The
// loader trusts ELF headers. In a truncated file it touches pages beyond the end, and the process
// dies of SIGBUS, which no Go program can catch.
package sharedlib

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// cache has the paths of the libraries that the GNU loader finds.
const cache = "/etc/ld.so.cache"

// Truncated returns an error if dlopen of the name would map a truncated file: an ELF file for this
// machine that ends before the end of a segment. If there is no such file, or dlopen finds another
// fault, Truncated returns nil, because the loader then reports the error itself.
func Truncated(name string) error {
	if strings.Contains(name, "/") {
		_, err := examine(name)
		return err
	}
	for _, folder := range filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")) {
		if fits, err := examine(filepath.Join(folder, name)); fits {
			return err // the first file for this machine is mapped
		}
	}
	return truncatedIn(cache, name)
}

// truncatedIn returns an error if all files of that name for this machine in a loader's cache are
// truncated. The loader's choice among these files depends on the processor.
func truncatedIn(cache, name string) (first error) {
	text, err := os.ReadFile(cache)
	if err != nil {
		return nil
	}
	for path := range bytes.SplitSeq(text, []byte{0}) {
		if !bytes.HasSuffix(path, []byte("/"+name)) {
			continue
		}
		switch fits, err := examine(string(path)); {
		case fits && err == nil:
			return nil
		case fits && first == nil:
			first = err
		}
	}
	return first
}

// machines are the values of e_machine in ELF headers, by GOARCH.
var machines = map[string]uint16{"amd64": 62, "arm64": 183}

// An elfHeader is the header of a 64-bit ELF file.
type elfHeader struct {
	Ident               [16]byte
	Type, Machine       uint16
	Version             uint32
	Entry, Phoff, Shoff uint64
	Flags               uint32
	Ehsize              uint16
	Phentsize, Phnum    uint16
	Shentsize, Shnum    uint16
	Shstrndx            uint16
}

// A segment is a program header of a 64-bit ELF file.
type segment struct {
	Type, Flags                                 uint32
	Offset, Vaddr, Paddr, Filesz, Memsz, Aligns uint64
}

const loadable = 1 // PT_LOAD

// examine reports whether a file is a 64-bit little-endian ELF library for this machine. If so, it
// returns an error if the file is truncated.
func examine(path string) (fits bool, err error) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return false, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return false, nil
	}
	defer f.Close()
	var h elfHeader
	if binary.Read(f, binary.LittleEndian, &h) != nil {
		return false, nil // the loader reports that such a file is too short
	}
	if !bytes.HasPrefix(h.Ident[:], []byte("\x7fELF\x02\x01")) || h.Machine != machines[runtime.GOARCH] || int(h.Phentsize) != binary.Size(segment{}) {
		return false, nil
	}
	headers := io.NewSectionReader(f, int64(min(h.Phoff, 1<<62)), int64(h.Phnum)*int64(h.Phentsize))
	for range h.Phnum {
		var s segment
		if binary.Read(headers, binary.LittleEndian, &s) != nil {
			return true, fmt.Errorf("%s: the file is truncated: it ends before its program headers", path)
		}
		if end := s.Offset + s.Filesz; s.Type == loadable && (end < s.Offset || end > uint64(info.Size())) {
			return true, fmt.Errorf("%s: the file is truncated: it has %d bytes of at least %d", path, info.Size(), end)
		}
	}
	return true, nil
}
