package flashkit

import "math"

// Args holds a call's tensors and the other inputs that are not part of the Problem. Shapes use
// the letters of Problem. Arguments returns a list of all tensors with their role in each pass.
// If the problem lacks a feature, the tensors of the feature must be the zero Tensor. A pass
// ignores the tensors that only the other pass uses.
//
// A call overwrites its outputs and does not add to them. With Problem.Carry, the forward pass
// also reads O, LSE and RowMax. An output must not share memory with any other tensor of the call. The
// Args and the elements of inputs must not change during a call. Concurrent calls may share
// inputs.
//
// The backward pass computes the gradients of sum(O*DO) + sum(LSE*DLSE). It reads O and LSE,
// the outputs of the forward pass.
type Args struct {
	Q      Tensor // queries [B, H, N, D]
	K      Tensor // keys [B, G, M, D]
	V      Tensor // values [B, G, M, DV]
	KScale Tensor // scales of Int8 keys [B, G, M, ceil(D/g)], g = Int8Group: multiplies g elements of a row. Float32 or Float16, in pages like K
	VScale Tensor // scales of Int8 values [B, G, M, ceil(DV/g)]

	O   Tensor // output [B, H, N, DV]; 0 for a row that sees no key
	LSE Tensor // natural log-sum-exp of a row's scores and sink [B, H, N, 1] float32; -Inf for a row without keys or sink. Optional in the forward pass without Carry

	RowMax Tensor // with Problem.RowMax, the largest score of a row over the keys that it sees [B, H, N, 1] float32; see Problem.RowMax

	KeyMass Tensor // with Problem.KeyMass, the sum of each key's weights over all query rows [B, H, 1, M] float32; see Problem.KeyMass

	DO   Tensor // gradient of O, an input [B, H, N, DV]
	DLSE Tensor // gradient of LSE, an input [B, H, N, 1] float32. Optional: a missing DLSE counts as 0
	DQ   Tensor // gradient of Q [B, H, N, D]
	DK   Tensor // gradient of K [B, G, M, D]
	DV   Tensor // gradient of V [B, G, M, DV]

	Bias   Tensor // added to the scores [B, H, N, M], Float32 or the problem's DType. Every dimension but the last may be 1 and then broadcasts
	DBias  Tensor // gradient of Bias, with the shape and type of Bias, summed over the dimensions that Bias broadcasts. Optional
	Mask   Tensor // Bool [B, H, N, M], broadcasts like Bias. True keeps the pair of a row and a key, false hides the key from the row
	Ranges Tensor // Int32 [B, H, N, 2R], R = Score.Ranges: the ranges of keys that a row sees, each as its first key and the key after its last; non-decreasing in a row, in [0, M]. B or H may be 1 and then broadcasts. Keys count from the start of the sequence
	Slopes Tensor // ALiBi slopes [B, H, 1, 1] float32; B may be 1 and then broadcasts
	Sink   Tensor // attention sinks: a logit for each query head [1, H, 1, 1] float32
	DSink  Tensor // gradient of Sink [1, H, 1, 1] float32. Optional

	Seed   uint64     // dropout seed: the same seed drops the same weights on every backend and in both passes
	Origin Origin     // position in a larger problem, for Score.Origin
	Seqs   *Sequences // sequence lengths and positions of a Ragged problem; nil in any other problem

	// Workers is the maximum number of goroutines of the call, including the caller's. If
	// Workers is 0, the backend sets the limit. Results do not depend on Workers. Backends that
	// compute on a device ignore Workers. Package dispatch ignores Workers, too, when it
	// chooses a kernel.
	Workers int
}

// An Origin is the position of a call's first sequence, head, row and key in a larger problem.
// Dropout counts sequences, query heads, rows and keys from these positions. A call for a part
// of a problem therefore drops the same weights as a call for the whole problem. In a Ragged
// problem, Row and Key apply to every sequence. Each field plus the problem's matching dimension
// must be less than 2^31.
type Origin struct {
	Batch int // first sequence
	Head  int // first query head
	Row   int // first query row of each sequence
	Key   int // first key of each sequence, a multiple of 8
}

// check returns nil if the origin is valid for p, else a *ProblemError.
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

// A Role is the set of ways in which a pass uses an argument. 0 means that the pass ignores the
// argument.
type Role uint8

// The roles. An argument that is both read and written has both Input and Output.
const (
	Input    Role = 1 << iota // read
	Output                    // written
	Optional                  // may be the zero Tensor
)

// An Argument describes one tensor of Args.
type Argument struct {
	Name    string // field of Args, such as "DLSE"
	roles   [2]Role
	feature Feature // feature that the argument belongs to, 0 for dense attention
	dtype   func(p *Problem) DType
	shape   func(p *Problem, m *extent) [4]int
	of      func(a *Args) *Tensor
}

// An extent holds the batch and row dimensions of a problem's tensors in memory. With packed or
// paged sequences these dimensions differ from the problem's.
type extent struct{ qBatch, rows, kvBatch, keys int }

func (p *Problem) extent() extent { return extent{p.Batch, p.QLen, p.Batch, p.KVLen} }

var arguments = func() [21]Argument {
	q := func(p *Problem, m *extent) [4]int { return [4]int{m.qBatch, p.Heads, m.rows, p.Dim} }
	o := func(p *Problem, m *extent) [4]int { return [4]int{m.qBatch, p.Heads, m.rows, p.VDim} }
	row := func(p *Problem, m *extent) [4]int { return [4]int{m.qBatch, p.Heads, m.rows, 1} }
	k := func(p *Problem, m *extent) [4]int { return [4]int{m.kvBatch, p.KVHeads, m.keys, p.Dim} }
	v := func(p *Problem, m *extent) [4]int { return [4]int{m.kvBatch, p.KVHeads, m.keys, p.VDim} }
	pairs := func(p *Problem, m *extent) [4]int { return [4]int{p.Batch, p.Heads, p.QLen, p.KVLen} }
	ranges := func(p *Problem, m *extent) [4]int { return [4]int{p.Batch, p.Heads, p.QLen, 2 * p.Score.Ranges} }
	kScale := func(p *Problem, m *extent) [4]int { return [4]int{m.kvBatch, p.KVHeads, m.keys, p.scales(p.Dim)} }
	vScale := func(p *Problem, m *extent) [4]int { return [4]int{m.kvBatch, p.KVHeads, m.keys, p.scales(p.VDim)} }
	mass := func(p *Problem, m *extent) [4]int { return [4]int{p.Batch, p.Heads, 1, p.KVLen} }
	slopes := func(p *Problem, m *extent) [4]int { return [4]int{p.Batch, p.Heads, 1, 1} }
	sink := func(p *Problem, m *extent) [4]int { return [4]int{1, p.Heads, 1, 1} }
	data, kv := func(p *Problem) DType { return p.DType }, func(p *Problem) DType { return p.KVType() }
	f32, boolean, i32 := func(*Problem) DType { return Float32 }, func(*Problem) DType { return Bool }, func(*Problem) DType { return Int32 }
	both := [2]Role{Input, Input}
	written := [2]Role{0, Output}
	return [...]Argument{
		{"Q", both, 0, data, q, func(a *Args) *Tensor { return &a.Q }},
		{"K", both, 0, kv, k, func(a *Args) *Tensor { return &a.K }},
		{"V", both, 0, kv, v, func(a *Args) *Tensor { return &a.V }},
		{"KScale", [2]Role{Input, 0}, FeatureInt8, f32, kScale, func(a *Args) *Tensor { return &a.KScale }},
		{"VScale", [2]Role{Input, 0}, FeatureInt8, f32, vScale, func(a *Args) *Tensor { return &a.VScale }},
		{"O", [2]Role{Output, Input}, 0, data, o, func(a *Args) *Tensor { return &a.O }},
		{"LSE", [2]Role{Output | Optional, Input}, 0, f32, row, func(a *Args) *Tensor { return &a.LSE }},
		{"RowMax", [2]Role{Output, 0}, FeatureRowMax, f32, row, func(a *Args) *Tensor { return &a.RowMax }},
		{"KeyMass", [2]Role{Output, 0}, FeatureKeyMass, f32, mass, func(a *Args) *Tensor { return &a.KeyMass }},
		{"DO", [2]Role{0, Input}, 0, data, o, func(a *Args) *Tensor { return &a.DO }},
		{"DLSE", [2]Role{0, Input | Optional}, 0, f32, row, func(a *Args) *Tensor { return &a.DLSE }},
		{"DQ", written, 0, data, q, func(a *Args) *Tensor { return &a.DQ }},
		{"DK", written, 0, kv, k, func(a *Args) *Tensor { return &a.DK }},
		{"DV", written, 0, kv, v, func(a *Args) *Tensor { return &a.DV }},
		{"Bias", both, FeatureBias, data, pairs, func(a *Args) *Tensor { return &a.Bias }},
		{"DBias", [2]Role{0, Output | Optional}, FeatureBias, data, pairs, func(a *Args) *Tensor { return &a.DBias }},
		{"Mask", both, FeatureMask, boolean, pairs, func(a *Args) *Tensor { return &a.Mask }},
		{"Ranges", both, FeatureRanges, i32, ranges, func(a *Args) *Tensor { return &a.Ranges }},
		{"Slopes", both, FeatureALiBi, f32, slopes, func(a *Args) *Tensor { return &a.Slopes }},
		{"Sink", both, FeatureSink, f32, sink, func(a *Args) *Tensor { return &a.Sink }},
		{"DSink", [2]Role{0, Output | Optional}, FeatureSink, f32, sink, func(a *Args) *Tensor { return &a.DSink }},
	}
}()

// Arguments returns descriptions of all tensors of Args, in the order of the fields. Code that
// checks, copies, lays out or names arguments loops over this list.
func Arguments() []Argument { return append([]Argument(nil), arguments[:]...) }

// Of returns a pointer to the argument's tensor in args.
func (a *Argument) Of(args *Args) *Tensor { return a.of(args) }

// Role returns the role of the argument in the given pass of problem p, or 0 if the pass
// ignores the argument.
func (a *Argument) Role(p *Problem, pass Pass) Role {
	role := a.roles[pass&1]
	if role == 0 || a.feature != 0 && p.Features()&a.feature == 0 {
		return 0
	}
	if pass == PassForward {
		role = a.carried(p, role)
	}
	return role
}

// carried returns a role in the forward pass. With Carry, O, LSE and RowMax are inputs as well.
func (a *Argument) carried(p *Problem, role Role) Role {
	if p.Carry && role&Output != 0 && a.feature != FeatureKeyMass {
		return Input | Output
	}
	return role
}

// Shape returns the argument's shape in problem p with dense or padded sequences. In Bias, DBias
// and Mask, every dimension but the last may be 1 instead. In Ranges, the first two dimensions may
// be 1 instead. In Slopes, the first dimension may be 1 instead.
func (a *Argument) Shape(p *Problem) [4]int {
	m := p.extent()
	return a.shape(p, &m)
}

// DType returns the argument's element type in problem p. Bias and DBias may also be Float32, and
// KScale and VScale Float16.
func (a *Argument) DType(p *Problem) DType { return a.dtype(p) }

// repeats reports whether the argument's dimension d may be 1 and broadcast.
func (a *Argument) repeats(d int) bool {
	switch a.feature {
	case FeatureBias, FeatureMask:
		return d < 3
	case FeatureRanges:
		return d < 2
	case FeatureALiBi:
		return d == 0
	}
	return false
}

// ProblemOf derives a problem from the tensors in args: their shapes, their types, and which
// optional tensors are present. The caller sets the parameters that no tensor shows, such as
// Scale and Dropout. Q, K and V are required. ProblemOf reports no errors. If the result is
// invalid, the call that uses it returns the error.
//
// With packed sequences, QLen and KVLen are the lengths of the longest sequence. With paged
// sequences, KVLen is the number of keys that the page table has room for in each sequence.
func ProblemOf(args *Args, band Band) Problem {
	if args == nil {
		return Problem{Band: band} // no heads: an invalid problem
	}
	q, k, v := args.Q.shape, args.K.shape, args.V.shape
	p := Problem{
		Batch: q[0], Heads: q[1], KVHeads: k[1], QLen: q[2], KVLen: k[2], Dim: q[3], VDim: v[3],
		DType: args.Q.dtype, Band: band,
	}
	if t := args.K.dtype; p.DType == Float32 && t.isData() {
		p.KVDType = t
	}
	if args.K.dtype == Int8 {
		p.Int8Group = groupOf(args)
	}
	p.Score.Bias, p.Score.Mask = !args.Bias.IsZero(), !args.Mask.IsZero()
	p.Score.ALiBi, p.Score.Sink = !args.Slopes.IsZero(), !args.Sink.IsZero()
	p.Score.Ranges = args.Ranges.shape[3] / 2
	p.RowMax, p.KeyMass = !args.RowMax.IsZero(), !args.KeyMass.IsZero()
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

// groupOf returns Int8Group of a call, from the numbers of scales of a row.
func groupOf(args *Args) int {
	k, v := args.K.shape[3], args.V.shape[3]
	if max(args.KScale.shape[3], args.VScale.shape[3]) <= 1 {
		return max(k, v)
	}
	if p := (Problem{Int8Group: 64}); p.scales(k) == args.KScale.shape[3] && p.scales(v) == args.VScale.shape[3] {
		return 64
	}
	return 32
}

// missing returns an error if Q, K or V is the zero Tensor. If args is nil, it returns nil.
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

// NewArgs returns dense host tensors of zeros for every argument of a pass of p. Sequences are
// padded and have full length. A paged sequence has consecutive pages of the pool. For an
// invalid problem or pass NewArgs returns empty Args.
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
