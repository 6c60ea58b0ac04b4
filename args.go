package flashkit

import "math"

// Args are the tensors of a call, and what else is data rather than part of the
// Problem. A pass reads and writes what Arguments says; a tensor that a pass or a
// problem has no use for must be the zero Tensor, but for those of the other pass.
// Outputs are written, never added to, and must not share memory with any other
// tensor. Nothing of it may change during a call; several calls at once may share what
// they read.
//
// The backward pass computes the gradients of sum(O*DO) + sum(LSE*DLSE), from the O
// and LSE that the forward pass wrote.
type Args struct {
	Q   Tensor // [B, H, N, D]
	K   Tensor // [B, G, M, D]
	V   Tensor // [B, G, M, DV]
	O   Tensor // [B, H, N, DV]; 0 for a row that sees no key
	LSE Tensor // [B, H, N, 1] float32, natural logarithm; -Inf for a row that sees no key. Optional in the forward pass without Carry

	DO   Tensor // [B, H, N, DV]
	DLSE Tensor // [B, H, N, 1] float32. Optional: without it the gradient is 0
	DQ   Tensor // [B, H, N, D]
	DK   Tensor // [B, G, M, D]
	DV   Tensor // [B, G, M, DV]

	Bias   Tensor // [B, H, N, M], each but M may be 1 and repeats; float32 or of the problem's DType
	DBias  Tensor // the shape and type of Bias, summed over what repeats. Optional
	Mask   Tensor // Bool, shapes of Bias; true takes part
	Slopes Tensor // [B, H, 1, 1] float32, B may be 1
	Sink   Tensor // [1, H, 1, 1] float32
	DSink  Tensor // [1, H, 1, 1] float32. Optional

	Seed   uint64     // of dropout: the same seed drops the same weights, on every backend and in both passes
	Origin Origin     // of Score.Origin
	Seqs   *Sequences // of a Ragged problem

	// Workers is how many goroutines the call may use at most, its own among them; 0 is
	// no limit but the backend's. Results do not depend on it. A backend whose work is
	// done elsewhere, on a device, has no use for it. Dispatch chooses as if there were
	// none.
	Workers int
}

// An Origin says where in a whole problem the part of a call begins, for dropout: the
// random number of a weight belongs to its sequence, query head, row and key, and these
// are counted from here on. In a Ragged problem all sequences have their first row and
// key here. Sums with what the problem has are below 2^31.
type Origin struct {
	Batch int // of the first sequence
	Head  int // the first query head
	Row   int // the first query row of a sequence
	Key   int // the first key of a sequence, a multiple of 8
}

// check returns nil or a *ProblemError.
func (o Origin) check(p *Problem) error {
	for _, x := range [...]struct {
		name     string
		first, n int
	}{{"Batch", o.Batch, p.Batch}, {"Head", o.Head, p.Heads}, {"Row", o.Row, p.QLen}, {"Key", o.Key, p.KVLen}} {
		switch most := math.MaxInt32 - x.n; {
		case x.first < 0 || x.first > max(most, 0):
			return problemErr("Origin."+x.name, x.first, "must be from 0 to %d", max(most, 0))
		case x.first != 0 && !p.Score.Origin:
			return problemErr("Origin."+x.name, x.first, "must be 0: the problem does not say that it has %v", FeatureOrigin)
		}
	}
	if o.Key%8 != 0 {
		return problemErr("Origin.Key", o.Key, "must be a multiple of 8, as so many keys share their random words")
	}
	return nil
}

// A Role says what a pass does with an argument. 0 is nothing.
type Role uint8

// The roles. An argument that is read and written has both.
const (
	Input    Role = 1 << iota // read
	Output                    // written
	Optional                  // may be the zero Tensor
)

// An Argument describes one tensor of Args.
type Argument struct {
	Name    string // of the field of Args, such as "DLSE"
	roles   [2]Role
	feature Feature // that it belongs to, 0 for dense attention
	dtype   func(p *Problem) DType
	shape   func(p *Problem, m *extent) [4]int
	of      func(a *Args) *Tensor
}

// An extent is what the memory of a problem's tensors has: other numbers than the
// problem's where sequences are packed or paged.
type extent struct{ qBatch, rows, kvBatch, keys int }

func (p *Problem) extent() extent { return extent{p.Batch, p.QLen, p.Batch, p.KVLen} }

var arguments = func() [16]Argument {
	q := func(p *Problem, m *extent) [4]int { return [4]int{m.qBatch, p.Heads, m.rows, p.Dim} }
	o := func(p *Problem, m *extent) [4]int { return [4]int{m.qBatch, p.Heads, m.rows, p.VDim} }
	row := func(p *Problem, m *extent) [4]int { return [4]int{m.qBatch, p.Heads, m.rows, 1} }
	k := func(p *Problem, m *extent) [4]int { return [4]int{m.kvBatch, p.KVHeads, m.keys, p.Dim} }
	v := func(p *Problem, m *extent) [4]int { return [4]int{m.kvBatch, p.KVHeads, m.keys, p.VDim} }
	pairs := func(p *Problem, m *extent) [4]int { return [4]int{p.Batch, p.Heads, p.QLen, p.KVLen} }
	slopes := func(p *Problem, m *extent) [4]int { return [4]int{p.Batch, p.Heads, 1, 1} }
	sink := func(p *Problem, m *extent) [4]int { return [4]int{1, p.Heads, 1, 1} }
	data, kv := func(p *Problem) DType { return p.DType }, func(p *Problem) DType { return p.KVType() }
	f32, boolean := func(*Problem) DType { return Float32 }, func(*Problem) DType { return Bool }
	both := [2]Role{Input, Input}
	written := [2]Role{0, Output}
	return [...]Argument{
		{"Q", both, 0, data, q, func(a *Args) *Tensor { return &a.Q }},
		{"K", both, 0, kv, k, func(a *Args) *Tensor { return &a.K }},
		{"V", both, 0, kv, v, func(a *Args) *Tensor { return &a.V }},
		{"O", [2]Role{Output, Input}, 0, data, o, func(a *Args) *Tensor { return &a.O }},
		{"LSE", [2]Role{Output | Optional, Input}, 0, f32, row, func(a *Args) *Tensor { return &a.LSE }},
		{"DO", [2]Role{0, Input}, 0, data, o, func(a *Args) *Tensor { return &a.DO }},
		{"DLSE", [2]Role{0, Input | Optional}, 0, f32, row, func(a *Args) *Tensor { return &a.DLSE }},
		{"DQ", written, 0, data, q, func(a *Args) *Tensor { return &a.DQ }},
		{"DK", written, 0, kv, k, func(a *Args) *Tensor { return &a.DK }},
		{"DV", written, 0, kv, v, func(a *Args) *Tensor { return &a.DV }},
		{"Bias", both, FeatureBias, data, pairs, func(a *Args) *Tensor { return &a.Bias }},
		{"DBias", [2]Role{0, Output | Optional}, FeatureBias, data, pairs, func(a *Args) *Tensor { return &a.DBias }},
		{"Mask", both, FeatureMask, boolean, pairs, func(a *Args) *Tensor { return &a.Mask }},
		{"Slopes", both, FeatureALiBi, f32, slopes, func(a *Args) *Tensor { return &a.Slopes }},
		{"Sink", both, FeatureSink, f32, sink, func(a *Args) *Tensor { return &a.Sink }},
		{"DSink", [2]Role{0, Output | Optional}, FeatureSink, f32, sink, func(a *Args) *Tensor { return &a.DSink }},
	}
}()

// Arguments returns the tensors of Args, in the order of its fields. It is the one
// list of them; whoever checks, copies, lays out or names arguments walks it.
func Arguments() []Argument { return append([]Argument(nil), arguments[:]...) }

// Of returns the argument's tensor in args.
func (a *Argument) Of(args *Args) *Tensor { return a.of(args) }

// Role returns what the pass of problem p does with the argument.
func (a *Argument) Role(p *Problem, pass Pass) Role {
	role := a.roles[pass&1]
	if role == 0 || a.feature != 0 && p.Features()&a.feature == 0 {
		return 0
	}
	if p.Carry && pass == PassForward && role&Output != 0 { // O and LSE
		return Input | Output
	}
	return role
}

// Shape returns the argument's shape in problem p, were its sequences neither
// packed nor paged. Bias, DBias, Mask and Slopes may have 1 in place of any number
// but the last one's.
func (a *Argument) Shape(p *Problem) [4]int {
	m := p.extent()
	return a.shape(p, &m)
}

// DType returns the argument's type in problem p. Bias and DBias may be Float32 too.
func (a *Argument) DType(p *Problem) DType { return a.dtype(p) }

// repeats reports whether the argument's dimension d may be 1 and repeat.
func (a *Argument) repeats(d int) bool {
	switch a.feature {
	case FeatureBias, FeatureMask:
		return d < 3
	case FeatureALiBi:
		return d == 0
	}
	return false
}

// ProblemOf returns the problem that the shapes, types and presence of args' tensors
// describe, so that no caller writes a shape twice. The caller adds the parameters that
// no tensor shows. It needs Q, K and V; what is wrong with them, or with the sequences,
// shows when the problem is used.
//
// In a packed problem QLen and KVLen are the longest sequences. In a paged one
// KVLen is the most keys that a row of the page table holds.
func ProblemOf(args *Args, band Band) Problem {
	if args == nil {
		return Problem{Band: band} // of no heads, which is not valid
	}
	q, k, v := args.Q.shape, args.K.shape, args.V.shape
	p := Problem{
		Batch: q[0], Heads: q[1], KVHeads: k[1], QLen: q[2], KVLen: k[2], Dim: q[3], VDim: v[3],
		DType: args.Q.dtype, Band: band,
	}
	if t := args.K.dtype; p.DType == Float32 && t.isData() {
		p.KVDType = t
	}
	p.Score.Bias, p.Score.Mask = !args.Bias.IsZero(), !args.Mask.IsZero()
	p.Score.ALiBi, p.Score.Sink = !args.Slopes.IsZero(), !args.Sink.IsZero()
	if s := args.Seqs; s != nil {
		p.Ragged = true
		p.Batch = s.count(p.Batch)
		if s.QStarts != nil {
			p.QLen = longest(s.QStarts)
		}
		switch {
		case s.KVStarts != nil:
			p.KVLen = longest(s.KVStarts)
		case s.Pages != nil || s.PagesPerSeq > 0:
			p.Page = k[2]
			if p.KVLen = math.MaxInt; !overflows(math.MaxInt, s.width(p.Batch), p.Page) {
				p.KVLen = s.width(p.Batch) * p.Page
			}
		}
	}
	return p
}

// missing returns an error if args, which may be nil, lack a tensor that each call reads.
func (args *Args) missing() error {
	if args == nil {
		return nil
	}
	for i := range arguments {
		a := &arguments[i]
		if a.roles[PassForward] == Input && a.feature == 0 && a.of(args).IsZero() {
			return problemErr(a.Name, "none", "the tensor is missing")
		}
	}
	return nil
}

// NewArgs returns arguments for a pass of a valid problem, with dense tensors of zeros
// for all that the pass has a use for, on the host. Sequences are padded and as long as
// they may be; the pages of a paged one follow each other in its pool. There are none
// for a problem or a pass that is not valid.
func NewArgs(p Problem, pass Pass) *Args {
	args, m := new(Args), p.extent()
	if p.Validate() != nil || pass.Validate() != nil {
		return args
	}
	if p.Ragged {
		args.Seqs = new(Sequences)
	}
	if p.Page > 0 {
		each := (p.KVLen + p.Page - 1) / p.Page
		m.kvBatch, m.keys = p.Batch*each, p.Page
		args.Seqs.KVLens, args.Seqs.Pages = make([]int32, p.Batch), make([]int32, m.kvBatch)
		for b := range args.Seqs.KVLens {
			args.Seqs.KVLens[b] = int32(p.KVLen)
		}
		for i := range args.Seqs.Pages {
			args.Seqs.Pages[i] = int32(i)
		}
	}
	for i := range arguments {
		if a := &arguments[i]; a.Role(&p, pass) != 0 {
			shape := a.shape(&p, &m)
			*a.of(args) = Zeros(a.DType(&p), shape[0], shape[1], shape[2], shape[3])
		}
	}
	return args
}
