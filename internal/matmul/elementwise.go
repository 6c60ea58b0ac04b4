package matmul

import "github.com/flashkit-go/flashkit/internal/workers"

const elements = 1 << 13 // elements of an item of an elementwise call

// planElements splits an elementwise call into items.
func (j *job) planElements() {
	j.items = int64((len(j.x) + elements - 1) / elements)
	time := 20 * float64(len(j.x)) / chosen.flops
	j.workers = int(min(int64(workers.Most(0)), 1+int64(time/smallTime), j.items))
}

// elements applies an activation, or its derivative, to the elements of one item. from is the index
// of the first of these elements.
func (j *job) elements(from int) {
	n := min(elements, len(j.x)-from)
	dst, x, act := j.dst[from:][:n], j.x[from:][:n], j.args.Activation
	switch {
	case j.dy == nil && chosen.finish[act] != nil:
		chosen.finish[act](&dst[0], 0, &x[0], 0, nil, nil, 0, nil, 0, 1, n, 0)
	case j.dy == nil:
		for i, v := range x {
			dst[i] = act.of(v)
		}
	case chosen.slope[act] != nil:
		chosen.slope[act](&dst[0], &x[0], &j.dy[from], n)
	default:
		act.slopePortable(dst, x, j.dy[from:][:n])
	}
}
