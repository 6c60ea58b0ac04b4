package conformance

import (
	"math"
	"math/rand/v2"
	"strings"

	"github.com/flashkit-go/flashkit"
)

// sides holds the arrangement of a case's queries and keys in memory. A layout can make any problem
// ragged. All sequences of this problem then have full length, but the tensors are longer, packed
// or paged.
type sides struct {
	p     flashkit.Problem // the problem that the kernel gets
	seqs  *flashkit.Sequences
	q, kv side
}

// A side is the memory layout of the queries or of the keys.
type side struct {
	shape  [2]int  // dimensions 0 and 2 of the tensors: batches or pages, and rows
	starts []int32 // starts of packed sequences
	lens   []int32
	pages  []int32 // page table, with width entries per sequence
	width  int
	page   int
}

// locate returns the tensor's batch and row that hold row r of sequence b. batch is -1 if the
// sequence has no row r.
func (s *side) locate(b, r int) (batch, row int) {
	switch {
	case r >= int(s.lens[b]):
		return -1, 0
	case s.starts != nil:
		return 0, int(s.starts[b]) + r
	case s.pages != nil:
		return int(s.pages[b*s.width+r/s.page]), r % s.page
	}
	return b, r
}

// newSides returns the layout of the inputs' sequences in memory.
func newSides(in *Inputs, l layout) *sides {
	x := &sides{p: in.p}
	x.q = side{shape: [2]int{x.p.Batch, x.p.QLen}, lens: []int32{}} // not nil, which would mean full lengths
	x.kv = side{shape: [2]int{x.p.Batch, x.p.KVLen}, lens: []int32{}}
	for b := range x.p.Batch {
		seq := in.seq(b)
		x.q.lens, x.kv.lens = append(x.q.lens, int32(seq.QLen)), append(x.kv.lens, int32(seq.KVLen))
	}
	if l < padded && !x.p.Ragged {
		return x
	}
	x.p.Ragged, x.seqs = true, new(flashkit.Sequences)
	if l == packed || l == packedQ {
		x.q.pack()
		x.seqs.QStarts = x.q.starts
	} else {
		x.q.pad(&x.p.QLen, l)
		if in.qLens != nil || l >= padded {
			x.seqs.QLens = x.q.lens
		}
	}
	switch {
	case l == paged || x.p.Page != 0:
		if x.p.Page == 0 {
			x.p.Page = 4
		}
		x.kv.paginate(x.p.Page, &x.p.KVLen, l)
		x.seqs.KVLens, x.seqs.Pages = x.kv.lens, x.kv.pages
	case l == packed || l == packedKV:
		x.kv.pack()
		x.seqs.KVStarts = x.kv.starts
	default:
		x.kv.pad(&x.p.KVLen, l)
		if in.kvLens != nil || l >= padded {
			x.seqs.KVLens = x.kv.lens
		}
	}
	return x
}

// laidOut returns the problem that the kernel gets for p in layout l.
func laidOut(p flashkit.Problem, l layout) *flashkit.Problem {
	p.Batch = 0 // so that the layout needs no inputs
	return &newSides(&Inputs{p: p}, l).p
}

// In layouts of ragged sequences, pad makes the tensors longer than any sequence. most is the
// problem's QLen or KVLen.
func (s *side) pad(most *int, l layout) {
	if l >= padded {
		*most += 3
		s.shape[1] = *most
	}
}

// pack packs the sequences into one batch, with unused rows before and after them.
func (s *side) pack() {
	at := int32(2)
	s.starts = []int32{at}
	for _, n := range s.lens {
		at += n
		s.starts = append(s.starts, at)
	}
	s.shape = [2]int{1, int(at) + 1}
}

// paginate assigns pages of a pool to the sequences in random order. The pool has a page that no
// sequence uses, and each sequence has at least one unused table entry. In layouts of ragged
// sequences, the table is wider than the longest sequence needs, and the longest sequence ends
// inside a page. most is the problem's KVLen.
func (s *side) paginate(page int, most *int, l layout) {
	if l >= padded {
		*most += 3
		if *most%page == 0 {
			*most++
		}
		s.width = (*most+page-1)/page + 2
	} else {
		s.width = (*most+page-1)/page + 1
		*most = s.width * page
	}
	s.page = page
	s.shape = [2]int{len(s.lens)*s.width + 1, page}
	r := rand.New(rand.NewPCG(uint64(len(s.lens)), uint64(page)))
	free := r.Perm(s.shape[0])
	s.pages = []int32{} // not nil: even without table entries the problem is paged
	for _, n := range s.lens {
		for i := range s.width {
			s.pages = append(s.pages, int32(free[0]))
			if i*page >= int(n) { // the kernel must not read the entry, so it is invalid
				s.pages[len(s.pages)-1] = []int32{-1, math.MaxInt32, math.MinInt32, int32(s.shape[0])}[len(s.pages)%4]
			}
			free = free[1:]
		}
	}
}

// place returns the memory of one argument of the call.
func (x *sides) place(in *Inputs, a *flashkit.Argument, l layout) *placed {
	dense, shape := in.shape(a), in.shape(a)
	dtype, strides := a.DType(&in.p), l
	if l == packed || l == paged { // most programs pack and page this way
		strides = bshd
	} else if l >= padded {
		strides = bhsd
	}
	if a.Name == "Bias" || a.Name == "DBias" {
		if !in.narrowPairs || l == gaps {
			dtype = flashkit.Float32
		}
	}
	if a.Name == "KScale" || a.Name == "VScale" {
		if dtype = flashkit.Float32; in.narrowScales && l != gaps {
			dtype = flashkit.Float16
		}
	}
	name := strings.ToLower(a.Name)
	switch a.Name {
	case "Q", "O", "LSE", "RowMax", "DO", "DLSE", "DQ":
		return x.q.place(name, dtype, dense, strides, false)
	case "K", "V", "KScale", "VScale", "DK", "DV":
		return x.kv.place(name, dtype, dense, strides, !strings.HasPrefix(a.Name, "D"))
	case "Bias", "DBias", "Mask", "KeyMass":
		if shape[2] != 1 {
			shape[2] = x.p.QLen
		}
		shape[3] = x.p.KVLen
	case "Ranges":
		shape[2] = x.p.QLen
	}
	y := place(name, dtype, shape, strides, false)
	y.fill(dense, func(b, r int) (int, int) { return b, r }, true)
	return y
}

// place returns the memory of a tensor of query rows or of keys.
func (s *side) place(name string, t flashkit.DType, dense [4]int, l layout, kv bool) *placed {
	shape := [4]int{s.shape[0], dense[1], s.shape[1], dense[3]}
	y := place(name, t, shape, l, kv)
	y.fill(dense, s.locate, s.starts == nil && s.pages == nil)
	if name == "lse" || name == "rowmax" {
		y.filler = math.Inf(-1)
	}
	return y
}
