package flashkit

import "strconv"

// CheckForward returns nil if p is valid and f has the tensors that p calls
// for, else a *ProblemError. It is the one validation in the module: kernels
// are only called with what has passed it.
func (p Problem) CheckForward(f *Forward) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if f == nil {
		return problemErr("Forward", "nil", "the arguments are missing")
	}
	return checkAll(
		arg{"Q", &f.Q, p.DType, p.QShape(), input},
		arg{"K", &f.K, p.DType, p.KShape(), input},
		arg{"V", &f.V, p.DType, p.VShape(), input},
		arg{"O", &f.O, p.DType, p.OShape(), output},
		arg{"LSE", &f.LSE, Float32, p.LSEShape(), output | optional},
	)
}

// CheckBackward is CheckForward for the backward pass.
func (p Problem) CheckBackward(b *Backward) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if b == nil {
		return problemErr("Backward", "nil", "the arguments are missing")
	}
	return checkAll(
		arg{"Q", &b.Q, p.DType, p.QShape(), input},
		arg{"K", &b.K, p.DType, p.KShape(), input},
		arg{"V", &b.V, p.DType, p.VShape(), input},
		arg{"O", &b.O, p.DType, p.OShape(), input},
		arg{"LSE", &b.LSE, Float32, p.LSEShape(), input},
		arg{"DO", &b.DO, p.DType, p.OShape(), input},
		arg{"DLSE", &b.DLSE, Float32, p.LSEShape(), input | optional},
		arg{"DQ", &b.DQ, p.DType, p.QShape(), output},
		arg{"DK", &b.DK, p.DType, p.KShape(), output},
		arg{"DV", &b.DV, p.DType, p.VShape(), output},
	)
}

// An arg is a tensor argument and what it must be.
type arg struct {
	name  string
	t     *Tensor
	dtype DType
	shape [4]int
	role  role
}

type role uint8

const (
	input    role = 0
	output   role = 1
	optional role = 2
)

func checkAll(args ...arg) error {
	for i := range args {
		if err := args[i].check(); err != nil {
			return err
		}
	}
	for i := range args {
		if args[i].role&output == 0 {
			continue
		}
		for j := range args {
			if i != j && mustOverlap(args[i].t, args[j].t) {
				return problemErr(args[i].name, "output", "shares memory with %s", args[j].name)
			}
		}
	}
	return nil
}

func (a *arg) check() error {
	t := a.t
	if t.IsZero() && a.shape != t.shape {
		if a.role&optional != 0 {
			return nil
		}
		return problemErr(a.name, "none", "the tensor is missing")
	}
	if t.dtype != a.dtype {
		return problemErr(a.name+".dtype", t.dtype, "must be %v", a.dtype)
	}
	if t.shape != a.shape {
		return problemErr(a.name+".shape", t.shape, "must be %v", a.shape)
	}
	if t.empty() {
		return nil
	}
	return a.checkStrides()
}

// checkStrides makes sure that every element of a non-empty view lies inside
// the memory and, for an output, that no two of them are the same one. The
// stride of a dimension of length 1 is never used and may be anything.
func (a *arg) checkStrides() error {
	t := a.t
	last := 0 // index of the last element
	for d, n := range t.shape {
		if n == 1 {
			continue
		}
		stride := t.strides[d]
		if stride < 0 {
			return problemErr(a.stride(d), stride, "must not be negative")
		}
		if stride > 0 && n-1 > (t.Len()-1-last)/stride {
			return problemErr(a.name+".len", t.Len(), "is too short for shape %v with strides %v", t.shape, t.strides)
		}
		last += (n - 1) * stride
	}
	if last >= t.Len() {
		return problemErr(a.name+".len", t.Len(), "is too short for shape %v with strides %v", t.shape, t.strides)
	}
	if a.role&output == 0 {
		return nil
	}
	return a.checkApart()
}

// checkApart refuses an output whose elements might coincide: each stride must
// step over everything that the smaller strides reach.
func (a *arg) checkApart() error {
	t := a.t
	reach := t.shape[3]
	for _, d := range t.byStride() {
		if t.shape[d] == 1 {
			continue
		}
		if t.strides[d] < reach {
			return problemErr(a.stride(d), t.strides[d], "lets elements of an output overlap; shape %v, strides %v", t.shape, t.strides)
		}
		reach += (t.shape[d] - 1) * t.strides[d]
	}
	return nil
}

func (a *arg) stride(d int) string { return a.name + ".strides[" + strconv.Itoa(d) + "]" }

// mustOverlap reports whether two views certainly share an element. Views may
// interleave in one allocation, as Q, K and V packed row by row do, so a common
// range alone proves nothing. Certain are: the same first or last element, and
// a first or last element inside a view without gaps. The rest is the caller's
// promise.
func mustOverlap(x, y *Tensor) bool {
	if x.empty() || y.empty() {
		return false
	}
	xFrom, xTo := x.span()
	yFrom, yTo := y.span()
	if xFrom >= yTo || yFrom >= xTo {
		return false
	}
	return xFrom == yFrom || xTo == yTo ||
		x.isDense() && (xFrom <= yFrom || yTo <= xTo) ||
		y.isDense() && (yFrom <= xFrom || xTo <= yTo)
}
