package flashkit

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// String returns the problem's name, such as b1-h8-g2-n128-m512-d64-f32-causal. The name has
// the following parts in this order. A part in brackets is omitted if its field has the default
// value:
//
//	b{Batch}-h{Heads}-g{KVHeads}-n{QLen}-m{KVLen}-d{Dim}[-dv{VDim}]-{DType}[-kv{KVDType}]
//	[-causal | -window{left}.{right}] [-topleft] [-shift{keys}]
//
// The active parameters follow, such as -softcap30-bias-page16; see Parameters. An unlimited
// side of a window is "inf". A negative shift keeps its minus, as in -shift-3. The name holds
// only lower-case letters, digits, '-' and '.', so it is safe as a file name and in go test
// -run.
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
	if p.KVDType != 0 {
		b = append(b, "-kv"...)
		b = append(b, p.KVDType.String()...)
	}
	b = p.Band.appendName(b)
	for i := range parameters {
		b = parameters[i].appendName(b, &p)
	}
	return string(b)
}

// appendName appends a dash, the parameter's name and, except for a bool, the number in the
// parameter's field of p. If the field is zero, appendName appends nothing.
func (x *Parameter) appendName(b []byte, p *Problem) []byte {
	n := len(b)
	b = append(append(b, '-'), x.Name...)
	switch v := x.of(p).(type) {
	case *float32:
		if *v != 0 {
			return strconv.AppendFloat(b, float64(*v), 'f', -1, 32)
		}
	case *int:
		if *v != 0 {
			return strconv.AppendInt(b, int64(*v), 10)
		}
	case *bool:
		if *v {
			return b
		}
	}
	return b[:n]
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
	if m.shift != 0 {
		b = append(b, "-shift"...)
		b = strconv.AppendInt(b, int64(m.shift), 10)
	}
	return b
}

// ParseProblem returns the valid problem with the given name. It accepts exactly the results of
// Problem.String: for a valid p, ParseProblem(p.String()) returns p. The error is a
// *ProblemError.
func ParseProblem(name string) (Problem, error) {
	p, err := parseProblem(name)
	if err != nil {
		return Problem{}, problemErr("problem name", fmt.Sprintf("%.300q", name), "%v", err)
	}
	if err := p.Validate(); err != nil {
		return Problem{}, err
	}
	if canonical := p.String(); canonical != name {
		return Problem{}, problemErr("problem name", fmt.Sprintf("%.300q", name), "not canonical; want %s", canonical)
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
			if d.key == "b" {
				return p, errors.New("want b{number}, as in b1-h8-g2-n128-m512-d64-f32-causal")
			}
			return p, fmt.Errorf("want %s{number}", d.key)
		}
		if *d.to, err = parseDim(value); err != nil {
			return p, fmt.Errorf("%s%.60s: %w", d.key, value, err)
		}
	}
	if p.VDim == absent {
		p.VDim = p.Dim
	}
	value, _ := next("")
	if p.DType, err = ParseDType(value); err != nil {
		return p, fmt.Errorf("dtype %.60q: must be f32, f16 or bf16", value)
	}
	if value, ok := next("kv"); ok {
		if p.KVDType, err = ParseDType(value); err != nil {
			return p, fmt.Errorf("kv%.60s: must be f16 or bf16", value)
		}
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
	if err := parseBand(&p.Band, word, next); err != nil {
		return err
	}
	for i := range parameters {
		x := &parameters[i]
		to, isBool := x.of(p).(*bool)
		if isBool {
			*to = word(x.Name)
			continue
		}
		if value, ok := next(x.Name); ok {
			if err := x.parse(p, value); err != nil {
				return fmt.Errorf("%s%.60s: %w", x.Name, value, err)
			}
		}
	}
	if len(*rest) > 0 {
		return fmt.Errorf("unexpected %.60q", (*rest)[0])
	}
	return nil
}

// parse sets the parameter's field in p to the number in value.
func (x *Parameter) parse(p *Problem, value string) (err error) {
	switch to := x.of(p).(type) {
	case *int:
		*to, err = parseDim(value)
	case *float32:
		var number float64
		if number, err = strconv.ParseFloat(value, 32); err != nil {
			return errors.New("not a number")
		}
		*to = float32(number)
	}
	return err
}

func parseBand(to *Band, word func(string) bool, next func(string) (string, bool)) (err error) {
	if word("causal") {
		*to = Causal()
	} else if value, ok := next("window"); ok {
		if *to, err = parseWindow(value); err != nil {
			return err
		}
	}
	if word("topleft") {
		*to = to.TopLeft()
	}
	value, ok := next("shift")
	if !ok {
		return nil
	}
	sign := 1
	if value == "" { // a negative number: Split cut the name at its minus
		sign = -1
		value, _ = next("")
	}
	n, err := parseDim(value)
	if err != nil {
		return fmt.Errorf("shift%.60s: %w", value, err)
	}
	*to = to.Shift(sign * n)
	return nil
}

func parseWindow(s string) (Band, error) {
	l, r, ok := strings.Cut(s, ".")
	if !ok {
		return Band{}, fmt.Errorf("window%.60s: want window{left}.{right}", s)
	}
	var sides [2]int
	for i, side := range [...]string{l, r} {
		if side == "inf" {
			sides[i] = Unlimited
			continue
		}
		n, err := parseDim(side)
		if err != nil {
			return Band{}, fmt.Errorf("window%.60s: %w", s, err)
		}
		sides[i] = n
	}
	return Window(sides[0], sides[1]), nil
}

func parseDim(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, strconv.IntSize-1)
	if err != nil {
		return 0, fmt.Errorf("%.60q is not a number in range", s)
	}
	return int(n), nil
}
