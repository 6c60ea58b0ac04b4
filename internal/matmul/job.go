package matmul

// A job is one call in progress.
type job struct {
	args       Args
	dst, x, dy []float32 // of elements
	done       <-chan struct{}
	sums       []float32
}

const (
	blockRows = 64  // of A and C, that an item has
	blockK    = 192 // most products of a partial sum
)

// kBlock returns the products of a partial sum, about equal parts of k. Sums of parts are
// rounded in smaller units than one of all.
func kBlock(k int) int {
	n := (k + blockK - 1) / blockK
	if n == 0 {
		return 0
	}
	return (k + n - 1) / n
}

func (j *job) product() {
	p := panelsOf(j.args.B.n)
	for row := 0; row < j.args.C.Rows; row += blockRows {
		for i := range p.count() {
			if j.canceled() {
				return
			}
			j.block(row, min(blockRows, j.args.C.Rows-row), i)
		}
	}
}

// block computes rows of C within panel i.
func (j *job) block(row, rows, i int) {
	a := &j.args
	col, width := panelsOf(a.B.n).at(i)
	if len(j.sums) < rows*width {
		j.sums = make([]float32, blockRows*3*lanes)
	}
	sums, panel := j.sums[:rows*width], a.B.memory[a.B.k*col:]
	step := kBlock(a.B.k)
	clear(sums)
	for k := 0; k < a.B.k; k += step {
		left := a.A.from(row, k)
		multiplyPortable(sums, left, panel[k*width:], min(step, a.B.k-k), rows, width)
	}
	cols := min(width, a.B.n-col)
	for r := range rows {
		j.finish(row+r, col, sums[r*width:][:cols])
	}
}

// from returns the view that begins with an element.
func (m *Matrix) from(row, col int) Matrix {
	x := *m
	x.Data = m.Data[row*m.RowStride+col*m.ColStride:]
	return x
}

// finish writes a part of a row of C.
func (j *job) finish(row, col int, x []float32) {
	a := &j.args
	c := a.C.from(row, col).Data[:len(x)]
	for i, v := range x {
		if a.Bias != nil {
			v += a.Bias[col+i]
		}
		if a.Before.Data != nil {
			a.Before.Data[row*a.Before.RowStride+col+i] = v
		}
		v = a.Activation.of(v)
		if a.Residual.Data != nil {
			v += a.Residual.Data[row*a.Residual.RowStride+col+i]
		}
		if a.Accumulate {
			v += c[i]
		}
		c[i] = v
	}
}

// multiplyPortable adds to sums, [rows][width], the products of rows of a and a panel.
func multiplyPortable(sums []float32, a Matrix, panel []float32, k, rows, width int) {
	for r := range rows {
		for c := 0; c < width; c += lanes {
			var sum [lanes]float32
			for i := range k {
				x, b := a.Data[r*a.RowStride+i*a.ColStride], panel[i*width+c:][:lanes]
				for l := range sum {
					sum[l] += float32(x * b[l])
				}
			}
			for l, s := range sum {
				sums[r*width+c+l] += s
			}
		}
	}
}

func (j *job) elements() {
	for i, x := range j.x {
		if i%4096 == 0 && j.canceled() {
			return
		}
		if j.dy == nil {
			j.dst[i] = j.args.Activation.of(x)
		} else {
			j.dst[i] = j.dy[i] * j.args.Activation.slope(x)
		}
	}
}

func (j *job) canceled() bool {
	select {
	case <-j.done:
		return true
	default:
		return false
	}
}
