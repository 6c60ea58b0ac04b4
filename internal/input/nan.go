package input

import (
	"fmt"
	"strings"

	"github.com/flashkit-go/flashkit"
)

// NaNs lists the input tensors that have NaN elements, with the number of these elements. It
// returns "" if there are none. Elements outside all sequences do not count.
func (w *Work) NaNs(c *flashkit.Call) string {
	var list []string
	for _, a := range flashkit.Arguments() {
		t := a.Of(&w.Input.Args)
		if t.IsZero() || t.DType() == flashkit.Bool {
			continue
		}
		if n, of := (oracleView{c}).countNaNs(&a, t); n > 0 {
			list = append(list, fmt.Sprintf("%d of %d elements of %s", n, of, strings.ToLower(a.Name)))
		}
	}
	return strings.Join(list, ", ")
}

// countNaNs returns the number of NaN elements of an argument, and the number of all elements. Both
// numbers cover only elements within sequences.
func (x oracleView) countNaNs(a *flashkit.Argument, t *flashkit.Tensor) (n, of int) {
	shape, s := x.shape(a), SideOf(a.Name)
	if IsEmpty(shape) {
		return 0, 0 // the other dimensions of an empty shape may be huge
	}
	for b := range shape[0] {
		rows := shape[2]
		switch s {
		case Queries:
			rows = x.call.Seq(b).N
		case Keys:
			rows = x.call.Seq(b).M
		}
		for h := range shape[1] {
			for r := range rows {
				at := x.offset(s, t, b, h, r)
				for i := range shape[3] {
					if v := Value(t, at+i); v != v {
						n++
					}
				}
				of += shape[3]
			}
		}
	}
	return n, of
}
