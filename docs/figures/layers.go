package main

// layers draws the data flow of a transformer layer and its two residual connections.
func layers() *drawing {
	d := &drawing{title: "A transformer layer: norms, projections and attention are added to the input, then a norm and two linear layers are added to that."}
	const (
		left, wide = 66., 214.
		high, step = 22., 34.
		side       = 340. // x of the lines that show the residual connections
		mid        = left + wide/2
	)
	y := 14.
	box := func(class, label string) {
		d.rect(class, left, y, wide, high)
		text := "mid"
		if class == "now" {
			text = "mid on"
		}
		d.text(text, mid, y+15, "%s", label)
		y += step
	}
	three := func(class string, labels [3]string) {
		const gap = 8.
		w := (wide - 2*gap) / 3
		for i, l := range labels {
			x := left + float64(i)*(w+gap)
			d.rect(class, x, y, w, high)
			d.text("mid", x+w/2, y+15, "%s", l)
			d.arrow(x+w/2, y-step+high, x+w/2, y)
			d.arrow(x+w/2, y+high, x+w/2, y+step)
		}
		y += step
	}
	add := func(from float64) { // draws a residual connection from y = from to the next box
		d.path("arrow", mid, from, side, from, side, y+high/2, left+wide+2, y+high/2)
		d.arrow(left+wide+14, y+high/2, left+wide, y+high/2)
		d.rect("edge", left, y, wide, high)
		d.text("mid", mid, y+15, "dropout, then added to the input")
		y += step
	}
	d.text("mid bold", mid, y+8, "x [rows, features]")
	y += 26
	first := y - 7
	three("past", [3]string{"norm q", "norm k", "norm v"})
	three("box", [3]string{"linear q", "linear k", "linear v"})
	box("now", "multi-head attention")
	d.arrow(mid, y-step+high, mid, y)
	box("box", "linear out")
	d.arrow(mid, y-step+high, mid, y)
	add(first)
	second := y - 7
	d.arrow(mid, y-step+high, mid, y)
	box("past", "norm")
	d.arrow(mid, y-step+high, mid, y)
	box("box", "linear1, ReLU, dropout")
	d.arrow(mid, y-step+high, mid, y)
	box("box", "linear2")
	d.arrow(mid, y-step+high, mid, y)
	add(second)
	d.arrow(mid, y-step+high, mid, y-2)
	d.text("mid bold", mid, y+10, "y [rows, features]")
	return d
}
