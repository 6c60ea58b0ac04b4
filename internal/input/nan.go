package input

import (
	"fmt"
	"strings"

	"github.com/flashkit-go/flashkit"
)

// NaNs says which tensors of the input have elements that are NaN, and how many; "" if there
// are none.
func (in *Input) NaNs() string {
	var list []string
	for _, a := range flashkit.Arguments() {
		if t := a.Of(&in.Args); !t.IsZero() {
			if n := countNaNs(t); n > 0 {
				list = append(list, fmt.Sprintf("%d of %d elements of %s", n, t.Len(), strings.ToLower(a.Name)))
			}
		}
	}
	return strings.Join(list, ", ")
}

// countNaNs counts the elements of a tensor's memory that are NaN.
func countNaNs(t *flashkit.Tensor) (n int) {
	var infinity uint16
	switch t.DType() {
	case flashkit.Float32:
		for _, x := range t.Float32s() {
			if x != x {
				n++
			}
		}
		return n
	case flashkit.Float16:
		infinity = 0x7c00
	case flashkit.BFloat16:
		infinity = 0x7f80
	default:
		return 0
	}
	for _, bits := range t.Uint16s() {
		if bits&0x7fff > infinity {
			n++
		}
	}
	return n
}
