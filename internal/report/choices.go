package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// A cell is a rectangle for a problem, in the color of the kernel that dispatch chose.
type cell struct {
	Kind       *kind // nil if dispatch's choice was not measured
	X, Y, W, H px
	MidX, MidY px
	Text       string // the loss, if noticeable, in place of the kind's mark
	Title      string
}

const (
	cellHeight  = 22
	widestCell  = 42
	mostLengths = 40 // more cells in a row are too narrow
)

// noticeable is the smallest loss that a cell shows. A loss is the time of dispatch's choice
// divided by the time of the fastest kernel.
const noticeable = 1.005

// choices returns the figure of dispatch's choices. The figure has a map of cells for each pass and
// ratio of rows to keys.
func (s *study) choices() *Figure {
	fig := &Figure{ID: "choices", Title: "What dispatch runs",
		Caption: "Each cell: the kernel that dispatch picks. A number: how many times slower it is than the best; ! is a number without room."}
	all := part{}
	var maps [][]*sweep // by pass and ratio of rows to keys
	for _, f := range s.sweeps {
		i := slices.IndexFunc(maps, func(m []*sweep) bool { return m[0].pass == f.pass && m[0].like.QLen == f.like.QLen })
		if i < 0 {
			i = len(maps)
			maps = append(maps, nil)
		}
		maps[i] = append(maps[i], f)
	}
	for _, sweeps := range maps {
		if p := s.choiceMap(sweeps); p != nil {
			all.Panels = append(all.Panels, p)
		}
	}
	if len(all.Panels) == 0 {
		fig.Caption = "No choice of dispatch was measured, or problems of too many lengths to show."
		return fig
	}
	fig.Parts = []part{all}
	fig.Gist = s.verdict()
	return fig
}

// verdict summarizes the cost of dispatch's choices.
func (s *study) verdict() string {
	n, best := 0, 0
	var chosen, fastest float64
	for _, c := range s.comparisons() {
		loss := c.loss()
		if !plottable(loss) {
			continue
		}
		n++
		if loss < noticeable {
			best++
		}
		chosen += c.chosen.Seconds
		fastest += c.fastest.Seconds
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("The best kernel for %d of %d problems; its choices together take %.3f times as long as the best ones.", best, n, chosen/fastest)
}

// choiceMap returns a drawn grid of dispatch's choices, with a row for each sweep and a column for each
// sequence length.
func (s *study) choiceMap(sweeps []*sweep) *panel {
	var points []*measured
	for _, f := range sweeps {
		points = append(points, f.points...)
	}
	columns := lengths(points)
	comparisons := map[flashkit.Problem]*comparison{}
	for _, c := range s.comparisons() {
		if c.pass == sweeps[0].pass {
			comparisons[c.p] = c
		}
	}
	if !slices.ContainsFunc(points, (*measured).chosen) || len(columns) > mostLengths {
		return nil
	}
	title := sweeps[0].pass.String() + s.shape(sweeps[0].like)
	p := &panel{Title: title, Full: title, Text: "What dispatch runs, " + title + ".", W: panelWidth}
	left, top := px(12), px(34)
	for _, f := range sweeps {
		left = max(left, textWidth(f.Line)+10)
	}
	left = min(left, 190)
	width := min((panelWidth-left)/px(len(columns)), widestCell)
	p.columnNames(columns, left, width, top-6)
	for r, f := range sweeps {
		y := top + cellHeight*px(r)
		p.Words = append(p.Words, words{X: 0, Y: y + cellHeight/2 + 4, Class: "dim", Text: f.Line})
		for i, n := range columns {
			q := f.like
			q.KVLen = n
			if q.QLen == 0 {
				q.QLen = n
			}
			if c := comparisons[q]; c != nil {
				p.Cells = append(p.Cells, c.cell(left+width*px(i), y, width))
			}
		}
	}
	p.H = top + cellHeight*px(len(sweeps)) + 18
	p.addLegend(s.kindsOf(slices.DeleteFunc(points, func(m *measured) bool { return !m.chosen() })))
	return p
}

func (p *panel) columnNames(columns []int, left, width, y px) {
	step := 1
	for px(step)*width < textWidth(strconv.Itoa(columns[len(columns)-1]))+4 {
		step++
	}
	for i := 0; i < len(columns); i += step {
		w := words{X: left + width*(px(i)+.5), Y: y, Class: "dim mid", Text: strconv.Itoa(columns[i])}
		w.X = min(w.X, panelWidth-textWidth(w.Text)/2)
		p.Words = append(p.Words, w)
	}
}

func (m *measured) chosen() bool { return m.Chosen && m.Memory == machine.Host }

func (c *comparison) cell(x, y, width px) cell {
	out := cell{X: x + 1, Y: y + 1, W: width - 2, H: cellHeight - 2, MidX: x + width/2, MidY: y + cellHeight/2}
	switch loss := c.loss(); {
	case c.chosen == nil:
		out.Title = c.p.String() + ": dispatch's choice was not measured"
	case loss >= noticeable:
		out.Kind = c.chosen.kind
		if width >= 26 {
			out.Text = strconv.FormatFloat(loss, 'f', 2, 64)
		} else {
			out.Text = "!"
		}
		out.Title = fmt.Sprintf("%s; %s takes %s", c.chosen.title(), c.fastest.Kernel, terminal.Seconds(c.fastest.Seconds))
	case math.IsNaN(loss):
		out.Kind = c.chosen.kind
		out.Title = c.chosen.title() + ", not compared"
	default:
		out.Kind = c.chosen.kind
		out.Title = c.chosen.title() + ", the fastest measured"
	}
	return out
}

// addLegend adds a legend below the plot, wrapped to the plot's width.
func (p *panel) addLegend(kinds []*kind) {
	x := px(6)
	for _, k := range kinds {
		if x > 6 && x+k.width() > p.W {
			x = 6
			p.H += lineHeight + 3
		}
		p.Keys = append(p.Keys, key{k, x, p.H})
		x += k.width() + 6
	}
	p.H += 10
}
