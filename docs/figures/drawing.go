package main

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// width is the width of all figures in SVG units, about the width of a phone's screen, on which
// text of 11 units is readable. On a desktop the image is shown zoom times larger.
const (
	width = 380
	zoom  = 1.5
)

type drawing struct {
	title string
	body  strings.Builder
	high  float64
}

const look = `svg{font:11.5px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;font-variant-numeric:tabular-nums;
color-scheme:light dark;--bg:#fff;--fg:#1c1e21;--dim:#5c6370;--line:#e3e5e8;--frame:#9aa1aa;--blue:#0c70eb;--pale:#cfe2fb;--orange:#b85a00;--mix:#f6d9ba;--box:#f3f4f6;fill:var(--fg)}
@media (prefers-color-scheme:dark){svg{--bg:#14171a;--fg:#e4e6e9;--dim:#9aa2ad;--line:#2a2f35;--frame:#6b737d;--blue:#4b9bff;--pale:#1d3a60;--orange:#f78e00;--mix:#573610;--box:#1e2328}}
.bg{fill:var(--bg)}.dim{fill:var(--dim)}.bold{font-weight:600}.mid{text-anchor:middle}.end{text-anchor:end}.on{fill:var(--bg);font-weight:600}
.box{fill:var(--box);stroke:var(--frame)}.ghost{fill:none;stroke:var(--frame);stroke-dasharray:3 3}.grid{stroke:var(--line);fill:none}
.now{fill:var(--blue)}.past{fill:var(--pale)}.state{fill:var(--orange)}.edge{fill:var(--mix)}.none{fill:none}
.rule{stroke:var(--bg);stroke-width:.7}.frame{fill:none;stroke:var(--frame)}.dot{fill:var(--fg)}
.arrow{fill:none;stroke:var(--dim);stroke-width:1.3}.tip{fill:var(--dim)}.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:11px}
.naive{stroke:var(--orange)}.flash{stroke:var(--blue)}.tensors{stroke:var(--dim);stroke-dasharray:5 3}.naive,.flash,.tensors{fill:none;stroke-width:2}
.tnaive{fill:var(--orange);font-weight:600}.tflash{fill:var(--blue);font-weight:600}
`

func (d *drawing) svg() []byte {
	h := d.high + 8
	return fmt.Appendf(nil, `<svg class="figure" xmlns="http://www.w3.org/2000/svg" style="max-width:100%%;height:auto" viewBox="0 0 %d %s" width="%s" height="%s" role="img" aria-label="%s">
<style>
%s</style>
<rect class="bg" width="%d" height="%s" rx="6"/>
%s</svg>
`, width, number(h), number(width*zoom), number(h*zoom), html.EscapeString(d.title), look, width, number(h), d.body.String())
}

// number formats a length with at most one decimal.
func number(x float64) string {
	return strconv.FormatFloat(math.Round(x*10)/10, 'f', -1, 64)
}

func (d *drawing) reach(y float64) { d.high = max(d.high, y) }

func (d *drawing) rect(class string, x, y, w, h float64) {
	d.reach(y + h)
	fmt.Fprintf(&d.body, "<rect class=\"%s\" x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\"/>\n", class, number(x), number(y), number(w), number(h))
}

func (d *drawing) text(class string, x, y float64, format string, args ...any) {
	d.reach(y + 4)
	fmt.Fprintf(&d.body, "<text class=\"%s\" x=\"%s\" y=\"%s\">%s</text>\n", class, number(x), number(y), html.EscapeString(fmt.Sprintf(format, args...)))
}

// path draws lines between consecutive points. xy has the x and the y of each point in turn.
func (d *drawing) path(class string, xy ...float64) {
	var b strings.Builder
	for i := 0; i < len(xy); i += 2 {
		d.reach(xy[i+1])
		fmt.Fprintf(&b, "%c%s %s", "ML"[min(i, 1)], number(xy[i]), number(xy[i+1]))
	}
	fmt.Fprintf(&d.body, "<path class=\"%s\" d=\"%s\"/>\n", class, b.String())
}

func (d *drawing) arrow(x1, y1, x2, y2 float64) {
	const size = 5
	long := math.Hypot(x2-x1, y2-y1)
	dx, dy := (x2-x1)/long*size, (y2-y1)/long*size
	d.path("arrow", x1, y1, x2-dx, y2-dy)
	d.path("tip", x2, y2, x2-1.6*dx-.7*dy, y2-1.6*dy+.7*dx, x2-1.6*dx+.7*dy, y2-1.6*dy-.7*dx)
}

func (d *drawing) lines(class string, x, y float64, text ...string) {
	for i, s := range text {
		d.text(class, x, y+16*float64(i), "%s", s)
	}
}
