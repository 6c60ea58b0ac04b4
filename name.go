package flashkit

import (
	"fmt"
	"strconv"
	"strings"
)

// String returns the problem's name, such as
// b1-h8-g2-n128-m512-d64-f32-causal. The parts are, in this order, with the
// bracketed ones left out when they say nothing:
//
//	b{Batch}-h{Heads}-g{KVHeads}-n{QLen}-m{KVLen}-d{Dim}[-dv{VDim}]-{DType}
//	[-causal | -window{left}.{right}] [-topleft] [-scale{Scale}]
//
// A side without a limit is "inf". It holds lower-case letters, digits, '-' and
// '.' only, so it is safe as a file name and in go test -run.
func (p Problem) String() string {
	b := make([]byte, 0, 64)
	dim := func(key string, n int) {
		b = append(b, key...)
		b = strconv.AppendInt(b, int64(n), 10)
	}
	dim("b", p.Batch)
	dim("-h", p.Heads)
	dim("-g", p.KVHeads)
	dim("-n", p.QLen)
	dim("-m", p.KVLen)
	dim("-d", p.Dim)
	if p.VDim != p.Dim {
		dim("-dv", p.VDim)
	}
	b = append(b, '-')
	b = append(b, p.DType.String()...)
	b = p.Mask.appendName(b)
	if p.Scale != 0 {
		b = append(b, "-scale"...)
		b = strconv.AppendFloat(b, float64(p.Scale), 'f', -1, 32)
	}
	return string(b)
}

func (m Band) appendName(b []byte) []byte {
	side := func(n int) {
		if n == Unlimited {
			b = append(b, "inf"...)
		} else {
			b = strconv.AppendInt(b, int64(n), 10)
		}
	}
	switch l, r := m.Left(), m.Right(); {
	case l == Unlimited && r == Unlimited:
	case l == Unlimited && r == 0:
		b = append(b, "-causal"...)
	default:
		b = append(b, "-window"...)
		side(l)
		b = append(b, '.')
		side(r)
	}
	if m.topLeft {
		b = append(b, "-topleft"...)
	}
	return b
}

// ParseProblem returns the valid problem with the given name. It accepts
// exactly what String prints, so a problem has one name:
// ParseProblem(p.String()) is p, and p.String() is what was parsed. The error
// is a *ProblemError.
func ParseProblem(name string) (Problem, error) {
	p, err := parseProblem(name)
	if err != nil {
		return Problem{}, problemErr("problem name", strconv.Quote(name), "%v", err)
	}
	if err := p.Validate(); err != nil {
		return Problem{}, err
	}
	if canonical := p.String(); canonical != name {
		return Problem{}, problemErr("problem name", strconv.Quote(name), "not canonical; want %s", canonical)
	}
	return p, nil
}

func parseProblem(name string) (p Problem, err error) {
	const absent = -1
	p.VDim = absent
	parts := strings.Split(name, "-")
	next := func(key string) (string, bool) {
		if len(parts) == 0 {
			return "", false
		}
		value, ok := strings.CutPrefix(parts[0], key)
		if ok {
			parts = parts[1:]
		}
		return value, ok
	}
	for _, d := range []struct {
		key      string
		to       *int
		optional bool
	}{
		{"b", &p.Batch, false}, {"h", &p.Heads, false}, {"g", &p.KVHeads, false}, {"n", &p.QLen, false},
		{"m", &p.KVLen, false}, {"d", &p.Dim, false}, {"dv", &p.VDim, true},
	} {
		value, ok := next(d.key)
		if !ok {
			if d.optional {
				continue
			}
			return p, fmt.Errorf("want %s{number}", d.key)
		}
		if *d.to, err = parseDim(value); err != nil {
			return p, fmt.Errorf("%s%s: %w", d.key, value, err)
		}
	}
	if p.VDim == absent {
		p.VDim = p.Dim
	}
	value, _ := next("")
	if p.DType, err = ParseDType(value); err != nil {
		return p, fmt.Errorf("dtype %q: must be f32, f16 or bf16", value)
	}
	return p, parseOptions(&p, next, &parts)
}

func parseOptions(p *Problem, next func(string) (string, bool), rest *[]string) (err error) {
	word := func(w string) bool {
		found := len(*rest) > 0 && (*rest)[0] == w
		if found {
			*rest = (*rest)[1:]
		}
		return found
	}
	if word("causal") {
		p.Mask = Causal()
	} else if value, ok := next("window"); ok {
		if p.Mask, err = parseWindow(value); err != nil {
			return err
		}
	}
	if word("topleft") {
		p.Mask = p.Mask.TopLeft()
	}
	if value, ok := next("scale"); ok {
		scale, err := strconv.ParseFloat(value, 32)
		if err != nil {
			return fmt.Errorf("scale%s: not a number", value)
		}
		p.Scale = float32(scale)
	}
	if len(*rest) > 0 {
		return fmt.Errorf("unexpected %q", (*rest)[0])
	}
	return nil
}

func parseWindow(s string) (Band, error) {
	l, r, ok := strings.Cut(s, ".")
	if !ok {
		return Band{}, fmt.Errorf("window%s: want window{left}.{right}", s)
	}
	var sides [2]int
	for i, side := range [...]string{l, r} {
		if side == "inf" {
			sides[i] = Unlimited
			continue
		}
		n, err := parseDim(side)
		if err != nil {
			return Band{}, fmt.Errorf("window%s: %w", s, err)
		}
		sides[i] = n
	}
	return Window(sides[0], sides[1]), nil
}

func parseDim(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, strconv.IntSize-1)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number in range", s)
	}
	return int(n), nil
}
