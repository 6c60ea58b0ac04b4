package oracle

// head returns the matrix [rows][dim] of one head of x, which has the given shape.
func head(x []float64, shape [4]int, b, h int) [][]float64 {
	rows, dim := shape[2], shape[3]
	m := make([][]float64, rows)
	for r := range m {
		at := ((b*shape[1]+h)*rows + r) * dim
		m[r] = x[at : at+dim]
	}
	return m
}

// product returns the matrix product of x [n][k] and y [k][m].
func product(x, y [][]float64) [][]float64 {
	return multiply(x, y, func(float64) bool { return true })
}

// weigh returns the product of weights x and a matrix y. A weight of 0 skips its row of y, which
// may hold NaN.
func weigh(x, y [][]float64) [][]float64 {
	return multiply(x, y, func(w float64) bool { return w != 0 })
}

func multiply(x, y [][]float64, counts func(float64) bool) [][]float64 {
	m := 0
	if len(y) > 0 {
		m = len(y[0])
	}
	z := zeros(len(x), m)
	for i := range x {
		for k, a := range x[i] {
			if !counts(a) {
				continue
			}
			for j, b := range y[k] {
				z[i][j] += float64(a * b)
			}
		}
	}
	return z
}

// transpose returns x [n][m] as [m][n]. m is a parameter because n may be 0.
func transpose(x [][]float64, m int) [][]float64 {
	t := zeros(m, len(x))
	for i := range x {
		for j := range m {
			t[j][i] = x[i][j]
		}
	}
	return t
}

func zeros(n, m int) [][]float64 {
	z := make([][]float64, n)
	for i := range z {
		z[i] = make([]float64, m)
	}
	return z
}

func scaleAll(x [][]float64, by float64) {
	for i := range x {
		for j := range x[i] {
			x[i][j] *= by
		}
	}
}

func addTo(sum, x [][]float64) {
	for i := range x {
		for j := range x[i] {
			sum[i][j] += x[i][j]
		}
	}
}

// flatten returns the rows of x one after the other. An empty row, from a product over no keys,
// becomes dim zeros.
func flatten(x [][]float64, dim int) []float64 {
	flat := make([]float64, 0, len(x)*dim)
	for _, row := range x {
		if len(row) == 0 {
			row = make([]float64, dim)
		}
		flat = append(flat, row...)
	}
	return flat
}
