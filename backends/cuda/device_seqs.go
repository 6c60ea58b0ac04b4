package cuda

import (
	"strconv"

	"github.com/flashkit-go/flashkit"
)

// DeviceSequences are the arrays of flashkit.Sequences in device memory, with elements of type
// int32. Kernels read the arrays while they run, not when the call is enqueued. A CUDA graph of a
// call can therefore be captured once and replayed with changed arrays, as a growing KV cache
// requires.
//
// Args.Seqs of the call defines which arrays there are, and their lengths. The numbers in Args.Seqs
// are checked, but kernels read only the arrays on the device. For each array in Args.Seqs, the
// Buffer of the same name must be set here. Args.Seqs may lack KVLens and Pages if
// Args.Seqs.PagesPerSeq is the length of a row of Pages. The numbers on the device are not checked.
// QStarts or KVStarts that decrease or exceed the tensors, and page numbers outside the pool, make
// kernels access memory outside the tensors. Kernels clamp query lengths to the range from 0 to
// QLen, and key lengths to the range from 0 to KVLen.
type DeviceSequences struct {
	QLens    *Buffer // number of rows of each padded query sequence; nil if Args.Seqs has no QLens
	QStarts  *Buffer // first row of each packed query sequence, then the end of the last sequence
	KVLens   *Buffer // number of keys of each padded or paged sequence
	KVStarts *Buffer // first key of each packed sequence, then the end of the last sequence
	Pages    *Buffer // page table: one row per sequence, all rows of the same length
}

// useSequences makes the kernels of the call read the arrays of d.
func (x *arguments) useSequences(b *Backend, d *DeviceSequences, s *flashkit.Sequences) error {
	if s == nil {
		return &flashkit.ProblemError{Field: "Seqs", Value: "nil", Reason: "must say which lists Options.Sequences has"}
	}
	f, lens := &x.features, len(s.KVLens)
	if s.PagesPerSeq > 0 && d.KVLens != nil {
		lens = int(x.batch)
	}
	for _, l := range [...]struct {
		name string
		n    int
		from *Buffer
		to   *Pointer
	}{
		{"QLens", len(s.QLens), d.QLens, &f.qLens}, {"QStarts", len(s.QStarts), d.QStarts, &f.qStarts}, {"KVLens", lens, d.KVLens, &f.kvLens},
		{"KVStarts", len(s.KVStarts), d.KVStarts, &f.kvStarts}, {"Pages", max(len(s.Pages), s.PagesPerSeq*int(x.batch)), d.Pages, &f.pages},
	} {
		field := "Options.Sequences." + l.name
		switch {
		case l.n == 0 && l.from == nil:
		case l.n == 0:
			return &flashkit.ProblemError{Field: field, Value: "given", Reason: "must not be given where Seqs." + l.name + " is empty"}
		case l.from == nil:
			return missing(field)
		case l.from.b != b:
			return otherDevice(field)
		case l.from.freed.Load():
			return &flashkit.ProblemError{Field: field, Value: "freed", Reason: "the buffer is freed"}
		case l.from.bytes/4 < l.n:
			return &flashkit.ProblemError{Field: field, Value: strconv.Itoa(l.from.bytes), Reason: "is too small for " + strconv.Itoa(l.n) + " numbers of 4 bytes"}
		default:
			*l.to = l.from.address
		}
	}
	x.pageWidth = int32(max(len(s.Pages)/max(1, int(x.batch)), s.PagesPerSeq))
	x.seqArrays, x.seqWords = [5][]int32{}, 0 // nothing to copy
	return nil
}

// missesTable returns an error if s gives PagesPerSeq in place of a page table, which only
// Options.Sequences can then provide.
func missesTable(s *flashkit.Sequences) error {
	if s != nil && s.PagesPerSeq > 0 {
		return missing("Options.Sequences.Pages")
	}
	return nil
}
