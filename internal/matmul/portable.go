package matmul

// multiplyPortable adds the products of a and a panel to sums, [rows][width]. The elements of each
// row of a are contiguous. The functions below convert each product to float32, which forbids fused
// multiply-adds. With fused multiply-adds, the bits of a row could depend on its tile.
func multiplyPortable(sums []float32, a *Matrix, panel []float32, width int) {
	r, k := 0, a.Cols
	for ; r+2 <= a.Rows; r += 2 {
		x, y := a.Data[r*a.RowStride:][:k], a.Data[(r+1)*a.RowStride:][:k]
		for c := 0; c < width; c += 4 {
			twoRows(sums[r*width+c:], x, y, panel[c:], width)
		}
	}
	if r < a.Rows {
		x := a.Data[r*a.RowStride:][:k]
		for c := 0; c < width; c += 4 {
			oneRow(sums[r*width+c:], x, panel[c:], width)
		}
	}
}

func twoRows(sums, x, y, panel []float32, width int) {
	var s0, s1, s2, s3, t0, t1, t2, t3 float32
	y = y[:len(x)]
	for i, x0 := range x {
		b, x1 := panel[i*width:][:4], y[i]
		s0 += float32(x0 * b[0])
		s1 += float32(x0 * b[1])
		s2 += float32(x0 * b[2])
		s3 += float32(x0 * b[3])
		t0 += float32(x1 * b[0])
		t1 += float32(x1 * b[1])
		t2 += float32(x1 * b[2])
		t3 += float32(x1 * b[3])
	}
	addFour(sums, s0, s1, s2, s3)
	addFour(sums[width:], t0, t1, t2, t3)
}

func oneRow(sums, x, panel []float32, width int) {
	var s0, s1, s2, s3 float32
	for i, x0 := range x {
		b := panel[i*width:][:4]
		s0 += float32(x0 * b[0])
		s1 += float32(x0 * b[1])
		s2 += float32(x0 * b[2])
		s3 += float32(x0 * b[3])
	}
	addFour(sums, s0, s1, s2, s3)
}

func addFour(sums []float32, s0, s1, s2, s3 float32) {
	sums[0] += s0
	sums[1] += s1
	sums[2] += s2
	sums[3] += s3
}

// finishPortable computes rows of C from their sums. It applies bias, activation and residual.
func (a *Args) finishPortable(sums []float32, row, col, rows, cols, width int) {
	for r := range rows {
		c := a.C.Data[(row+r)*a.C.RowStride+col:][:cols]
		for i, v := range sums[r*width:][:cols] {
			if a.Bias != nil {
				v += a.Bias[col+i]
			}
			if a.Before.Data != nil {
				a.Before.Data[(row+r)*a.Before.RowStride+col+i] = v
			}
			v = a.Activation.of(v)
			if a.Residual.Data != nil {
				v += a.Residual.Data[(row+r)*a.Residual.RowStride+col+i]
			}
			if a.Accumulate {
				v += c[i]
			}
			c[i] = v
		}
	}
}

// slopePortable sets dx[i] = dy[i] act'(x[i]).
func (act Activation) slopePortable(dx, x, dy []float32) {
	for i, v := range x {
		switch {
		case act == None, act == ReLU && !(v <= 0):
			dx[i] = dy[i]
		case act == ReLU:
			dx[i] = 0
		default:
			dx[i] = dy[i] * act.slope(v)
		}
	}
}
