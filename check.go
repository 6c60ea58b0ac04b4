package flashkit

import "strconv"

// check returns nil if c.Args fit the valid problem and the pass of c, else a *ProblemError. It
// also sets c.memory and c.Traits. Kernels rely on this check and do not validate arguments
// again.
func (c *Call) check() error {
	p := &c.Problem
	c.memory = p.extent()
	if c.Pass == PassBackward {
		if err := p.checkBackward(); err != nil {
			return err
		}
	}
	if n := c.Args.Workers; n < 0 {
		return problemErr("Workers", n, "must be at least 1, or 0 for no limit")
	}
	if err := c.Args.Origin.check(p); err != nil {
		return err
	}
	if p.Ragged != (c.Args.Seqs != nil) {
		return problemErr("Args.Seqs", c.Args.Seqs != nil, "must be given in a Ragged problem, and in no other; Ragged = %v", p.Ragged)
	}
	if p.Ragged {
		var err error
		if c.memory, err = c.Args.Seqs.extent(p, c.Args); err != nil {
			return err
		}
	}
	features := p.Features()
	var args [len(arguments)]arg
	list := args[:0]
	for i := range arguments {
		a := &arguments[i]
		x := arg{Argument: a, t: a.of(c.Args), role: a.roles[c.Pass&1]}
		if a.feature&^features != 0 {
			if !x.t.IsZero() {
				return problemErr(a.Name, "given", "the problem does not say that it has %v", a.feature)
			}
			continue
		}
		x.role = a.carried(p, x.role) // a backward pass has no Carry
		if x.role != 0 {
			if err := x.check(p, &c.memory, c.Args); err != nil {
				return err
			}
			if !x.t.empty() {
				x.from, x.to = x.t.span()
			}
			list = append(list, x)
		}
	}
	if err := checkShared(list); err != nil {
		return err
	}
	if err := c.checkRanges(); err != nil {
		return err
	}
	c.setTraits()
	return nil
}

// checkBackward returns a *ProblemError if p has a feature without a backward pass.
func (p *Problem) checkBackward() error {
	if p.Page != 0 {
		return problemErr("Page", p.Page, "has no backward pass")
	}
	if p.Carry {
		return problemErr("Carry", true, "has no backward pass: the ordinary one takes the O and LSE of all keys")
	}
	if p.KVDType != 0 {
		return problemErr("KVDType", p.KVDType, "has no backward pass")
	}
	if p.Int8Group != 0 {
		return problemErr("Int8Group", p.Int8Group, "has no backward pass")
	}
	if p.KeyMass {
		return problemErr("KeyMass", true, "has no backward pass: the forward pass alone writes it")
	}
	if p.RowMax {
		return problemErr("RowMax", true, "has no backward pass: the forward pass alone writes it")
	}
	return nil
}

// An arg is a call's argument with its role in the pass.
type arg struct {
	*Argument
	t        *Tensor
	role     Role
	from, to uintptr // address range [from, to) of the elements; both 0 if there are no elements
}

func checkShared(args []arg) error {
	for i := range args {
		if args[i].role&Output == 0 {
			continue
		}
		for j := range args {
			if i != j && mustOverlap(&args[i], &args[j]) {
				return problemErr(args[i].Name, "output", "shares memory with %s", args[j].Name)
			}
		}
	}
	return nil
}

func (a *arg) check(p *Problem, m *extent, args *Args) error {
	t, shape, dtype, repeats := a.t, a.shape(p, m), a.DType(p), true
	if t.IsZero() {
		if a.role&Optional != 0 {
			return nil
		}
		return problemErr(a.Name, "none", "the tensor is missing")
	}
	switch a.Name {
	case "Bias":
		if t.dtype == Float32 {
			dtype = Float32
		}
	case "KScale", "VScale":
		if t.dtype == Float16 {
			dtype = Float16
		}
	case "DBias":
		shape, dtype, repeats = args.Bias.shape, args.Bias.dtype, false
	}
	if t.dtype != dtype {
		return problemErr(a.Name+".dtype", t.dtype, "must be %v", dtype)
	}
	if (t.owner == nil) != (args.Q.owner == nil) {
		return problemErr(a.Name, t.where(), "must lie where Q does, %s", args.Q.where())
	}
	for d, n := range t.shape {
		if n != shape[d] && !(n == 1 && repeats && a.repeats(d)) {
			return problemErr(a.Name+".shape", t.shape, "must be %v%s", shape, a.mayRepeat(repeats))
		}
	}
	if t.empty() {
		return nil
	}
	return a.checkStrides()
}

// mayRepeat returns a part of an error message: the dimensions that may be 1, or "" for none.
func (a *arg) mayRepeat(repeats bool) string {
	switch {
	case repeats && a.repeats(2):
		return ", or 1 in place of any number but the last"
	case repeats && a.repeats(1):
		return ", or 1 in place of the first or second number"
	case repeats && a.repeats(0):
		return ", or 1 in place of the first number"
	}
	return ""
}

// where returns a part of an error message: the host, or the tensor's device.
func (t *Tensor) where() string {
	if t.owner == nil {
		return "on the host"
	}
	return "on " + t.owner.Device()
}

// checkStrides checks that every element of a non-empty tensor is inside the tensor's memory. If
// the tensor is an output, checkStrides also checks that no two elements have the same address.
// The stride of a dimension of length 1 is unused and may have any value.
func (a *arg) checkStrides() error {
	t := a.t
	last := 0 // index of the last element
	for d, n := range t.shape {
		if n == 1 {
			continue
		}
		stride := t.strides[d]
		if stride < 0 {
			return problemErr(a.strideName(d), stride, "must not be negative")
		}
		if stride > 0 && n-1 > (t.Len()-1-last)/stride {
			return problemErr(a.Name+".len", t.Len(), "is too short for shape %v with strides %v", t.shape, t.strides)
		}
		last += (n - 1) * stride
	}
	if last >= t.Len() {
		return problemErr(a.Name+".len", t.Len(), "is too short for shape %v with strides %v", t.shape, t.strides)
	}
	if a.role&Output == 0 {
		return nil
	}
	return a.checkApart()
}

// checkApart returns an error if two elements of an output might have the same address. Each
// stride must be at least the span of all dimensions with smaller strides.
func (a *arg) checkApart() error {
	t := a.t
	reach := t.shape[3]
	for _, d := range t.byStride() {
		if t.shape[d] == 1 {
			continue
		}
		if t.strides[d] < reach {
			return problemErr(a.strideName(d), t.strides[d], "lets elements of an output overlap; shape %v, strides %v", t.shape, t.strides)
		}
		reach += (t.shape[d] - 1) * t.strides[d]
	}
	return nil
}

func (a *arg) strideName(d int) string { return a.Name + ".strides[" + strconv.Itoa(d) + "]" }

// mustOverlap reports whether two arguments certainly share an element. Views may interleave in
// one allocation, such as Q, K and V packed row by row. Intersecting address ranges therefore
// prove nothing. The overlap is certain if both views have the same first or the same last
// element. It is also certain if one view is dense and contains the first or last element of the
// other view. The caller of the library must avoid all other overlaps.
func mustOverlap(x, y *arg) bool {
	if x.from >= y.to || y.from >= x.to {
		return false
	}
	return x.from == y.from || x.to == y.to ||
		x.t.isDense() && (x.from <= y.from || y.to <= x.to) ||
		y.t.isDense() && (y.from <= x.from || x.to <= y.to)
}
