package main

import (
	"fmt"

	"github.com/flashkit-go/flashkit"
)

// side is the number of rows and keys in a tile of the figure.
const side = 4

// skip draws which tiles of S a kernel skips, for several masks.
func skip() *drawing {
	d := &drawing{title: "Which tiles of S are skipped, computed whole, or tested pair by pair, for causal masks and windows."}
	panels := []struct {
		title string
		n, m  int
		mask  flashkit.Band
	}{
		{"causal, N = M", 16, 16, flashkit.Causal()},
		{"window left 5, right 0", 16, 16, flashkit.Window(5, 0)},
		{"N < M, bottom-right", 8, 16, flashkit.Causal()},
		{"N < M, top-left", 8, 16, flashkit.Causal().TopLeft()},
	}
	y := 18.
	for i := 0; i < len(panels); i += 2 {
		for j, p := range panels[i : i+2] {
			d.masked(14+188*float64(j), y, p.title, flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: p.n, KVLen: p.m, Dim: 1, VDim: 1, Band: p.mask})
		}
		y += float64(panels[i].n)*cell + 52
	}
	for i, k := range []struct{ class, text string }{{"now", "full: every pair, no test"}, {"edge", "edge: tests each pair, a dot is visible"}, {"none", "skipped: neither loaded nor computed"}} {
		at := y + 19*float64(i)
		d.rect(k.class, 14, at-10, 13, 13)
		d.rect("frame", 14, at-10, 13, 13)
		d.text("", 34, at+1, "%s", k.text)
	}
	return d
}

// cell is the side of the square for one pair of a row and a key.
const cell = 10.

func (d *drawing) masked(x, y float64, title string, p flashkit.Problem) {
	d.text("bold", x, y, "%s", title)
	top := y + 10
	found := map[string]int{}
	for r := 0; r < p.QLen; r += side {
		for c := 0; c < p.KVLen; c += side {
			class := tileClass(p, r, c)
			found[class]++
			tx, ty := x+cell*float64(c), top+cell*float64(r)
			d.rect(class, tx, ty, side*cell, side*cell)
			for i := r; i < r+side && class == "edge"; i++ {
				lo, hi := p.Keys(i)
				for j := max(lo, c); j < min(hi, c+side); j++ {
					fmt.Fprintf(&d.body, "<circle class=\"dot\" cx=\"%s\" cy=\"%s\" r=\"1.7\"/>\n", number(x+cell*(float64(j)+.5)), number(top+cell*(float64(i)+.5)))
				}
			}
			d.rect("frame", tx, ty, side*cell, side*cell)
		}
	}
	d.text("dim", x, top+cell*float64(p.QLen)+16, "%d full, %d edge, %d skipped", found["now"], found["edge"], found["none"])
}

// tileClass returns the drawing's class for the tile that begins at row and key: "none" if the tile
// is skipped, "now" if the tile is full, else "edge".
func tileClass(p flashkit.Problem, row, key int) string {
	seen := 0
	for i := row; i < row+side; i++ {
		lo, hi := p.Keys(i)
		seen += max(0, min(hi, key+side)-max(lo, key))
	}
	switch seen {
	case 0:
		return "none"
	case side * side:
		return "now"
	}
	return "edge"
}
