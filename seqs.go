package flashkit

import (
	"math"
	"slices"
	"strconv"
	"unsafe"
)

// Sequences holds the lengths and positions of a Ragged problem's sequences. Queries are padded
// or packed; keys are padded, packed or paged. The layouts of queries and keys are independent:
//
//   - padded: sequence b has the first QLens[b] rows and KVLens[b] keys of batch b. If QLens is
//     nil, all sequences have QLen rows; if KVLens is nil, all have KVLen keys. Elements past the
//     length are not read. For rows past the length, the forward pass writes 0 to O and -Inf to
//     LSE, and the backward pass writes 0 to DQ. For keys past the length, the backward pass
//     writes 0 to DK and DV.
//   - packed: the tensors have batch 1. Sequence b has the query rows [QStarts[b], QStarts[b+1])
//     or the keys [KVStarts[b], KVStarts[b+1]). Other libraries call such an array cu_seqlens.
//     Elements outside all sequences are neither read nor written.
//   - paged: K is a pool [pages, G, Page, D], and V is a pool [pages, G, Page, DV]. Sequence b has
//     the first KVLens[b] keys of pages Pages[b*w], Pages[b*w+1], ... with w = len(Pages)/Batch.
//     Table entries past the length are ignored. Only the forward pass supports pages. If the
//     table exists only in device memory (cuda.DeviceSequences), Pages is nil and PagesPerSeq is
//     w; KVLens may then be nil, too.
type Sequences struct {
	QLens    []int32 // number of query rows of each sequence [B], in [0, QLen]
	KVLens   []int32 // number of keys of each sequence [B], in [0, KVLen]
	QStarts  []int32 // first query row of each sequence, then the end of the last [B+1]; non-decreasing, in [0, rows of Q]
	KVStarts []int32 // first key of each sequence, then the end of the last [B+1]; non-decreasing, in [0, keys of K]
	Pages    []int32 // page numbers [B][w], each in [0, pages of K)

	PagesPerSeq int // w if only the device has the table and Pages is nil; else 0
}

// A Seq is one sequence of a call: its position in the tensors and its band. A dense call has
// one Seq for each batch index.
type Seq struct {
	QBatch, Q0, N  int // batch index in Q and O, first query row, number of query rows
	KVBatch, K0, M int // batch index in K and V, first key, number of keys. Call.KeyRun locates paged keys
	Lo, Hi         int // row i sees the keys from i+Lo to i+Hi, both included
	Diagonal       int // the diagonal meets row i at key i+Diagonal
}

// Keys returns the range [lo, hi) of keys that query row i of the sequence sees. Rows and keys
// are numbered from the start of the sequence.
func (s *Seq) Keys(i int) (lo, hi int) { return clamp(i+s.Lo, s.M), clamp(i+s.Hi+1, s.M) }

// Queries returns the range [lo, hi) of query rows that see key j of the sequence. Rows and
// keys are numbered from the start of the sequence.
func (s *Seq) Queries(j int) (lo, hi int) { return clamp(j-s.Hi, s.N), clamp(j-s.Lo+1, s.N) }

// Area returns the number of (row, key) pairs of the sequence that the band lets through, per
// head.
func (s *Seq) Area() int64 {
	return int64(sumClamped(s.Hi+1, s.N, s.M) - sumClamped(s.Lo, s.N, s.M))
}

// count returns the number of sequences, or the argument if no field determines this number.
func (s *Sequences) count(otherwise int) int {
	switch {
	case s.QStarts != nil:
		return len(s.QStarts) - 1
	case s.KVStarts != nil:
		return len(s.KVStarts) - 1
	case s.KVLens != nil:
		return len(s.KVLens)
	case s.QLens != nil:
		return len(s.QLens)
	}
	return otherwise
}

// width returns the number of page table entries per sequence.
func (s *Sequences) width(batch int) int {
	if s.Pages == nil {
		return s.PagesPerSeq
	}
	return len(s.Pages) / max(1, batch)
}

func longest(starts []int32) (n int) {
	for i := 1; i < len(starts); i++ {
		n = max(n, int(starts[i])-int(starts[i-1]))
	}
	return n
}

// extent checks s against p and the tensors. It returns the batch and row dimensions that the
// tensors must have.
func (s *Sequences) extent(p *Problem, args *Args) (extent, error) {
	m := p.extent()
	if err := checkSide("Q", p.Batch, p.QLen, s.QLens, s.QStarts, 0); err != nil {
		return m, err
	}
	if err := checkSide("KV", p.Batch, p.KVLen, s.KVLens, s.KVStarts, p.Page); err != nil {
		return m, err
	}
	if err := s.checkTable(p, args.Q.owner != nil); err != nil {
		return m, err
	}
	if err := s.checkPacked(p, args); err != nil {
		return m, err
	}
	if s.QStarts != nil {
		m.qBatch, m.rows = 1, args.Q.shape[2]
		if err := checkEnd("QStarts", s.QStarts, "Q", m.rows); err != nil {
			return m, err
		}
	}
	switch {
	case s.KVStarts != nil:
		m.kvBatch, m.keys = 1, args.K.shape[2]
		return m, checkEnd("KVStarts", s.KVStarts, "K", m.keys)
	case p.Page != 0:
		m.kvBatch, m.keys = args.K.shape[0], p.Page
		return m, s.checkPages(p, m.kvBatch)
	}
	return m, nil
}

// checkSide checks the lengths and starts of queries (side "Q") or keys (side "KV"). most is
// the maximum length of a sequence, and page is the page size or 0.
func checkSide(side string, batch, most int, lens, starts []int32, page int) error {
	switch {
	case starts != nil && (lens != nil || page != 0):
		return problemErr("Seqs."+side+"Starts", "given", "must not stand beside lengths or pages: a side is packed or not")
	case lens != nil && len(lens) != batch:
		return problemErr("Seqs."+side+"Lens.len", len(lens), "must be Batch = %d", batch)
	case starts != nil && len(starts)-1 != batch:
		return problemErr("Seqs."+side+"Starts.len", len(starts), "must be Batch + 1 = %d", batch+1)
	}
	for b, n := range lens {
		if n < 0 || int(n) > most {
			return problemErr(element("Seqs."+side+"Lens", b), n, "must be from 0 to %d", most)
		}
	}
	for b := range starts {
		switch {
		case b == 0 && starts[0] < 0:
			return problemErr("Seqs."+side+"Starts[0]", starts[0], "must not be negative")
		case b > 0 && starts[b] < starts[b-1]:
			return problemErr(element("Seqs."+side+"Starts", b), starts[b], "must not be below %d before it", starts[b-1])
		case b > 0 && int(starts[b])-int(starts[b-1]) > most:
			return problemErr(element("Seqs."+side+"Starts", b), starts[b], "ends a sequence of %d, longer than %d", starts[b]-starts[b-1], most)
		}
	}
	return nil
}

// checkTable checks that s has a page table if p is paged, and none otherwise. The table may be
// on the host, or only on the tensors' device.
func (s *Sequences) checkTable(p *Problem, device bool) error {
	given := s.Pages != nil || s.PagesPerSeq != 0
	switch {
	case p.Page == 0 && given || p.Batch > 0 && p.Page != 0 && !given:
		return problemErr("Seqs.Pages", s.Pages != nil, "must be given in a problem with pages, and in no other; Page = %d", p.Page)
	case p.Batch > 0 && p.Page != 0 && s.KVLens == nil && s.PagesPerSeq == 0:
		return problemErr("Seqs.KVLens", "nil", "paged keys need their lengths")
	case s.PagesPerSeq < 0 || s.PagesPerSeq > math.MaxInt32:
		return problemErr("Seqs.PagesPerSeq", s.PagesPerSeq, "must be from 0 to %d", math.MaxInt32)
	case s.PagesPerSeq != 0 && (s.Pages != nil || !device):
		return problemErr("Seqs.PagesPerSeq", s.PagesPerSeq, "must be 0, unless Pages is nil as only the device of the tensors has the table")
	}
	return nil
}

// checkPacked returns an error if Q or K has batch 1, the call has several sequences, and the
// starts that packed sequences need are missing.
func (s *Sequences) checkPacked(p *Problem, args *Args) error {
	const reason = "must be given, as %s has batch 1 in a call of %d sequences"
	switch {
	case p.Batch < 2:
	case s.QStarts == nil && args.Q.shape[0] == 1:
		return problemErr("Seqs.QStarts", "nil", reason, "Q", p.Batch)
	case s.KVStarts == nil && p.Page == 0 && args.K.shape[0] == 1:
		return problemErr("Seqs.KVStarts", "nil", reason, "K", p.Batch)
	}
	return nil
}

func checkEnd(name string, starts []int32, tensor string, rows int) error {
	if end := int(starts[len(starts)-1]); end > rows {
		return problemErr(element("Seqs."+name, len(starts)-1), end, "is beyond the %d rows of %s", rows, tensor)
	}
	return nil
}

// checkPages checks that the page table has enough entries for each sequence, and that each
// used entry is in [0, pool).
func (s *Sequences) checkPages(p *Problem, pool int) error {
	w := s.width(p.Batch)
	if p.Batch > 0 && len(s.Pages)%p.Batch != 0 {
		return problemErr("Seqs.Pages.len", len(s.Pages), "must be a multiple of Batch = %d", p.Batch)
	}
	for b := range p.Batch {
		keys := p.KVLen
		if s.KVLens != nil {
			keys = int(s.KVLens[b])
		}
		pages := keys / p.Page
		if keys%p.Page != 0 {
			pages++
		}
		if pages > w {
			return problemErr(element("Seqs.KVLens", b), keys, "needs %d pages, and the table has %d for each sequence", pages, w)
		}
		if s.Pages == nil {
			continue
		}
		if i := firstBeyond(s.Pages[b*w:][:pages], pool); i >= 0 {
			return problemErr(element("Seqs.Pages", b*w+i), s.Pages[b*w+i], "must be from 0 to %d, the pages of K", pool-1)
		}
	}
	return nil
}

// firstBeyond returns the index of the first page outside [0, pool), or -1. Every call checks its
// page table, so the loop must be fast: it tests two pages per uint64. A negative page has its top
// bit set. Each half of the variable last holds pool-1 with the top bit set. If a page is beyond
// the pool, the subtraction of the page from last clears this bit.
func firstBeyond(pages []int32, pool int) int {
	const top = 1<<63 | 1<<31
	beyond := func(x int32) bool { return x < 0 || int(x) >= pool }
	if pool > 0 && len(pages) >= 8 { // a *uint64 must point to 8 valid bytes
		last := uint64(min(pool-1, math.MaxInt32))
		last |= last<<32 | top
		pairs := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(pages))), len(pages)/2)
		signs, within := uint64(0), uint64(top)
		for ; len(pairs) >= 4; pairs = pairs[4:] {
			x := (*[4]uint64)(pairs)
			signs |= x[0] | x[1] | x[2] | x[3]
			within &= (last - x[0]) & (last - x[1]) & (last - x[2]) & (last - x[3])
		}
		if signs&top == 0 && within == top {
			rest := len(pages) / 8 * 8
			if i := slices.IndexFunc(pages[rest:], beyond); i >= 0 {
				return rest + i
			}
			return -1
		}
	}
	return slices.IndexFunc(pages, beyond)
}

func element(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }
