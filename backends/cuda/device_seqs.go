package cuda

import (
	"strconv"

	"github.com/flashkit-go/flashkit"
)

// DeviceSequences are the lists of flashkit.Sequences in memory of the device, as int32,
// read when the work runs: a CUDA graph that holds a call, of a step of a growing KV cache
// say, is captured once, and replayed while the lists change.
//
// Args.Seqs of the call says the rest: which lists there are, how long they are, and the
// most that they may say; its own numbers are checked but not used. A list that it
// has must be here too. KVLens and Pages may be here alone, where PagesPerSeq says how long a row of Pages is. What the device's lists say is not checked: starts that fall or end beyond
// the tensors, and pages outside the pool, read and write memory that is not the call's.
// Lengths below 0 or above QLen or KVLen count as these.
type DeviceSequences struct {
	QLens, QStarts, KVLens, KVStarts, Pages *Buffer
}

// useSequences makes the lists in memory of the device those of the call.
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

// missesTable refuses a call whose page table is nowhere.
func missesTable(s *flashkit.Sequences) error {
	if s != nil && s.PagesPerSeq > 0 {
		return missing("Options.Sequences.Pages")
	}
	return nil
}
