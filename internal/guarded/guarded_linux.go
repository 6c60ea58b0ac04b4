package guarded

import (
	"fmt"
	"syscall"
)

// Memory returns the given number of pieces of memory. Each piece has the given number of bytes,
// rounded up to whole pages, and is between inaccessible pages. free unmaps all pieces.
func Memory(pieces, bytes int) (list [][]byte, free func(), err error) {
	page := syscall.Getpagesize()
	each := (bytes+page-1)/page*page + page
	all, err := syscall.Mmap(-1, 0, pieces*each+page, syscall.PROT_NONE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return nil, nil, fmt.Errorf("no mapping between pages without access: %w", err)
	}
	free = func() { _ = syscall.Munmap(all) }
	for i := range pieces {
		piece := all[i*each+page:][: each-page : each-page]
		if err := syscall.Mprotect(piece, syscall.PROT_READ|syscall.PROT_WRITE); err != nil {
			free()
			return nil, nil, fmt.Errorf("no pages without access: %w", err)
		}
		list = append(list, piece)
	}
	return list, free, nil
}
