package main

import (
	"fmt"
	"math"
)

// tile draws how a tile of query rows visits the tiles of keys, and an example of the online
// softmax for one row.
func tile() *drawing {
	d := &drawing{title: "A tile of query rows visits the tiles of K and V one after the other. Only the current tile of S exists; m, l and A stay with the rows."}
	const (
		step, tiles          = 35., 5. // keys per tile; number of tiles
		left, top            = 86., 70.
		thick, high          = 34., 120.
		row, rows            = 106., 36. // y and height of the tile of query rows
		across               = step * tiles
		right, under, gap    = left + across, top + high, 8.
		current              = left + 2*step
		qx, ox, kTop, vUnder = left - gap - thick, right + gap, top - gap - thick, under + gap
	)
	d.text("bold", left, 18, "keys, tile by tile")
	d.arrow(left+116, 14, right, 14)
	d.rect("box", left, kTop, across, thick)
	d.rect("box", left, vUnder, across, thick)
	d.rect("box", qx, top, thick, high)
	d.rect("box", ox, top, thick, high)
	d.rect("ghost", left, top, across, high)
	for i := range 2 {
		x := left + float64(i)*step
		d.rect("past", x, kTop, step, thick)
		d.rect("past", x, row, step, rows)
		d.rect("past", x, vUnder, step, thick)
	}
	d.rect("now", qx, row, thick, rows)
	d.rect("now", current, kTop, step, thick)
	d.rect("now", current, row, step, rows)
	d.rect("now", current, vUnder, step, thick)
	d.rect("state", ox, row, thick, rows)
	for _, x := range []float64{1, 2, 3, 4} {
		d.path("rule", left+x*step, kTop, left+x*step, kTop+thick)
		d.path("rule", left+x*step, vUnder, left+x*step, vUnder+thick)
	}
	middle := row + rows/2 + 4
	d.text("on mid", qx+thick/2, middle, "Q")
	d.text("on mid", current+step/2, kTop+thick/2+4, "K")
	d.text("on mid", current+step/2, middle, "S, P")
	d.text("on mid", current+step/2, vUnder+thick/2+4, "V")
	d.text("on mid", ox+thick/2, middle, "A")
	d.text("dim mid", qx+thick/2, top-8, "N x D")
	d.text("dim", right+gap, kTop+thick/2+4, "K, M x D")
	d.text("dim", right+gap, vUnder+thick/2+4, "V, M x DV")
	d.text("dim mid", left+across/2, top+20, "S and P, N x M: never stored")
	d.text("dim mid", left+across/2, under-12, "other rows: other workers")
	d.text("dim mid", ox+thick/2, top+20, "O")
	d.lines("bold", ox+thick+6, middle, "m, l, A")
	d.lines("dim", ox+thick+6, middle+15, "stay")
	d.arrow(qx-14, top, qx-14, under)
	fmt.Fprintf(&d.body, "<text class=\"bold\" transform=\"translate(%s %s) rotate(-90)\">rows, on all cores</text>\n", number(qx-20), number(under))
	d.online(vUnder + thick + 30)
	return d
}

// online draws a table of the online softmax: the state of one row after each of three tiles of two
// keys.
func (d *drawing) online(y float64) {
	scores := [][]float64{{1, 3}, {2, 5}, {4, 0}}
	values := [][]float64{{10, 20}, {30, 40}, {50, 60}}
	columns := []float64{14, 76, 150, 196, 250, 306, 366}
	d.text("bold", 14, y, "One row, six keys in three tiles, DV = 1")
	for i, name := range []string{"scores", "V", "m", "a", "l", "A", "A / l"} {
		d.text("dim"+align(i), columns[i], y+20, "%s", name)
	}
	m, l, sum := math.Inf(-1), 0., 0.
	for t, s := range scores {
		most := max(m, s[0], s[1])
		a := math.Exp(m - most)
		m, l, sum = most, a*l, a*sum
		for j := range s {
			p := math.Exp(s[j] - m)
			l, sum = l+p, sum+p*values[t][j]
		}
		at := y + 40 + 19*float64(t)
		d.path("grid", 14, at-14, 366, at-14)
		for i, text := range []string{fmt.Sprintf("%g  %g", s[0], s[1]), fmt.Sprintf("%g  %g", values[t][0], values[t][1]), fmt.Sprintf("%g", m), fmt.Sprintf("%.3f", a),
			fmt.Sprintf("%.3f", l), fmt.Sprintf("%.2f", sum), fmt.Sprintf("%.3f", sum/l)} {
			d.text("mono"+align(i), columns[i], at, "%s", text)
		}
	}
	top, bottom := 0., 0.
	for t, s := range scores {
		for j := range s {
			top += math.Exp(s[j]-5) * values[t][j]
			bottom += math.Exp(s[j] - 5)
		}
	}
	d.text("dim", 14, y+102, "The whole row at once, softmax(S) V:")
	d.text("mono end", 366, y+102, "%.3f", top/bottom)
}

// align returns the class that aligns a column of the table: to the left for the lists in columns 0
// and 1, to the right for numbers.
func align(column int) string {
	if column < 2 {
		return ""
	}
	return " end"
}
