package flashkit

import (
	"cmp"
	"math/bits"
)

// A Call is a kernel's input: a problem, a pass and checked arguments. Set and Problem.Ask fill
// in the fields; kernels only read them. Set and Kernel.Do change the call. All other methods
// of Call are safe for concurrent use.
type Call struct {
	Problem
	Pass   Pass   // pass to compute
	Args   *Args  // nil in a call made by Ask
	Traits Traits // traits of the tensors in Args

	Workers int // Args.Workers, which a backend may lower while it runs the call; 0 in a call made by Ask

	checked bool
	memory  extent // batch and row dimensions of the tensors in memory
}

// Traits are the properties of a call's tensors that matter for the choice of a kernel. Two
// values of Traits can be compared by ==. The zero value stands for dense host tensors.
type Traits struct {
	Device   bool  // the tensors are on a device
	Loose    bool  // on a device, a row of Q, K, V, O or DO begins at an address that is not a multiple of 16 bytes
	PackedQ  bool  // the query rows of all sequences are packed
	PackedKV bool  // the keys of all sequences are packed
	Load     uint8 // about 4*log2(x), where x is Batch*QLen*KVLen divided by the sum of rows*keys over all sequences
}

// Set checks args for a pass of p and stores problem, pass and arguments in c. Every error is a
// *ProblemError. After an error Kernel.Do refuses c. Set allocates nothing, so programs can
// reuse a Call.
func (c *Call) Set(p Problem, pass Pass, args *Args) error {
	c.checked = false
	c.Problem, c.Pass, c.Args, c.Traits, c.Workers = p, pass, args, Traits{}, 0
	if err := p.Validate(); err != nil {
		return cmp.Or(args.missing(), err) // without Q, K or V, ProblemOf returns an invalid problem: the missing tensor is the clearer error
	}
	if err := pass.Validate(); err != nil {
		return err
	}
	if args == nil {
		return problemErr("Args", "nil", "the arguments are missing")
	}
	if err := c.check(); err != nil {
		return err
	}
	c.Workers = args.Workers
	c.checked = true
	return nil
}

// Check returns nil if args fit a pass of p, else a *ProblemError that names the first field at
// fault. It reads shapes, lengths, page tables and ranges of keys on the host, but no elements of
// other tensors.
func (p Problem) Check(pass Pass, args *Args) error { return new(Call).Set(p, pass, args) }

// Ask returns a call without arguments, as input for a kernel's Fits, Cost and Needs. Kernel.Do
// refuses this call. The traits of the call stand for dense host tensors. p and pass must be
// valid.
func (p Problem) Ask(pass Pass) *Call { return &Call{Problem: p, Pass: pass} }

// Seq returns sequence b of the call, 0 <= b < Batch. In a call made by Ask every sequence has
// full length.
func (c *Call) Seq(b int) Seq {
	s := Seq{QBatch: b, N: c.QLen, KVBatch: b, M: c.KVLen}
	if c.Ragged && c.Args != nil {
		c.Args.Seqs.locate(&s, b)
	}
	s.Lo, s.Hi = c.Band.Diagonals(s.N, s.M)
	s.Diagonal = c.Band.Diagonal(s.N, s.M)
	return s
}

func (q *Sequences) locate(s *Seq, b int) {
	switch {
	case q.QStarts != nil:
		s.QBatch, s.Q0, s.N = 0, int(q.QStarts[b]), int(q.QStarts[b+1]-q.QStarts[b])
	case q.QLens != nil:
		s.N = int(q.QLens[b])
	}
	switch {
	case q.KVStarts != nil:
		s.KVBatch, s.K0, s.M = 0, int(q.KVStarts[b]), int(q.KVStarts[b+1]-q.KVStarts[b])
	case q.KVLens != nil:
		s.M = int(q.KVLens[b])
	}
}

// KeyRun locates key j of sequence b and KV head g in the memory of t, which is K, V or one of
// their gradients. It returns the key's offset in elements, and the number of keys from j to
// the end of the sequence or page. These keys follow each other at t's row stride. Both results
// are 0 if only a device has the page table.
func (c *Call) KeyRun(t *Tensor, b, g, j int) (offset, keys int) {
	s := c.Seq(b)
	if c.Page == 0 {
		return t.Offset(s.KVBatch, g, s.K0+j), s.M - j
	}
	seqs := c.Args.Seqs
	if seqs.Pages == nil {
		return 0, 0
	}
	page, at := seqs.Pages[b*seqs.width(c.Batch)+j/c.Page], j%c.Page
	return t.Offset(int(page), g, at), min(c.Page-at, s.M-j)
}

// Area returns the number of (row, key) pairs per head that the band lets through, summed over
// all sequences.
func (c *Call) Area() (sum int64) {
	if !c.Ragged || c.Args == nil || c.Args.Seqs.count(-1) < 0 {
		return int64(c.Batch) * c.Problem.Area()
	}
	for b := range c.Batch {
		s := c.Seq(b)
		sum += s.Area()
	}
	return sum
}

// FLOPs returns the number of floating-point operations of the call. It counts like
// Problem.FLOPs, but with the actual sequence lengths.
func (c *Call) FLOPs() float64 {
	f := 2 * float64(c.Heads) * float64(c.Area()) * float64(c.Dim+c.VDim)
	if c.Pass == PassBackward {
		f *= 2.5
	}
	return f
}

// setTraits derives the call's traits from its checked arguments.
func (c *Call) setTraits() {
	c.Traits.Device = c.Args.Q.owner != nil
	if c.Traits.Device {
		for _, t := range [...]*Tensor{&c.Args.Q, &c.Args.K, &c.Args.V, &c.Args.O, &c.Args.DO} {
			if !t.empty() && t.isLoose() {
				c.Traits.Loose = true
			}
		}
	}
	s := c.Args.Seqs
	if s == nil || s.count(-1) < 0 {
		return // all sequences have full length
	}
	c.Traits.PackedQ, c.Traits.PackedKV = s.QStarts != nil, s.KVStarts != nil
	var pairs uint64
	for b := range c.Batch {
		q := Seq{N: c.QLen, M: c.KVLen}
		s.locate(&q, b)
		pairs += uint64(q.N) * uint64(q.M)
	}
	c.Traits.Load = quarters(uint64(c.Batch)*uint64(c.QLen)*uint64(c.KVLen)) - quarters(pairs)
}

// quarters returns 4*log2(n), rounded down. Here log2 is linear between one power of two and
// the next. quarters(0) is 0.
func quarters(n uint64) uint8 {
	if n == 0 {
		return 0
	}
	e := bits.Len64(n) - 1
	return uint8(4*e) + uint8(n<<(63-e)>>61&3)
}
