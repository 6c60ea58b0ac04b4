package bench

import (
	_ "embed"
	"encoding/csv"
	"fmt"
	"io"
	"math/big"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// Size converts a number of bytes to a big.Int: the matrices of a valid problem may take more bytes
// than an int can hold.
func Size(x float64) *big.Int {
	n, _ := big.NewFloat(x).Int(nil)
	return n
}

func product(factors ...int) *big.Int {
	n := big.NewInt(1)
	for _, f := range factors {
		n.Mul(n, big.NewInt(int64(f)))
	}
	return n
}

func sum(terms ...*big.Int) *big.Int {
	n := new(big.Int)
	for _, t := range terms {
		if t != nil {
			n.Add(n, t)
		}
	}
	return n
}

// A MemoryTable is the output of flashrun memory for a pass of a problem. The JSON names are
// stable.
type MemoryTable struct {
	Problem string        `json:"problem"`
	Pass    string        `json:"pass"`
	Heads   *big.Int      `json:"heads"`        // query heads times batch
	Tensors *big.Int      `json:"tensor_bytes"` // Q, K, V, O and the tensors of features; in the backward pass also the gradients
	Lines   []*MemoryLine `json:"lines"`

	p    flashkit.Problem
	lse  *big.Int
	full *big.Int // size of the matrices in the problem's type
}

// The kinds of lines of a MemoryTable.
const (
	kindMatrices = "matrices"   // matrices of the naive form
	kindStats    = "statistics" // row statistics of the tiled form
	KindKernel   = "kernel"
	kindMissing  = "missing" // a backend unavailable on this machine
)

// A MemoryLine holds the memory of one of three things: the naive form's matrices, row statistics,
// or a kernel. The memory does not include the tensors.
type MemoryLine struct {
	Name       string       `json:"name"` // such as "S, P" or "LSE", or a kernel's name
	Kind       string       `json:"kind"`
	DType      string       `json:"dtype,omitempty"` // type of the matrices or statistics
	OneHead    *big.Int     `json:"one_head_bytes,omitempty"`
	Bytes      *big.Int     `json:"bytes,omitempty"`
	Ratio      float64      `json:"ratio,omitempty"` // bytes of the matrices in the problem's type, divided by Bytes
	Formula    *big.Int     `json:"workspace_formula_bytes,omitempty"`
	Measured   *big.Int     `json:"workspace_measured_bytes,omitempty"`
	Unmeasured string       `json:"unmeasured,omitempty"` // reason why Measured is missing
	Device     *DeviceBytes `json:"device_bytes,omitempty"`
	Note       string       `json:"note,omitempty"`
}

// NewMemoryTable returns the table of a pass with the lines of the matrices and of the row
// statistics.
func NewMemoryTable(p flashkit.Problem, s flashkit.Pass) *MemoryTable {
	elem := p.DType.Size()
	t := &MemoryTable{Problem: p.String(), Pass: s.String(), p: p, Heads: product(p.Batch, p.Heads), Tensors: new(big.Int)}
	for _, a := range flashkit.Arguments() {
		if x := input.ShapeIn(&a, &p); a.Role(&p, s) != 0 && a.Name != "LSE" && a.Name != "DLSE" {
			t.Tensors = sum(t.Tensors, product(x[0], x[1], x[2], x[3], a.DType(&p).Size()))
		}
	}
	matrices, count := "S, P", 2
	if s == flashkit.PassBackward {
		matrices, count = "S, P, dS, dP", 4
	}
	types := []flashkit.DType{p.DType, flashkit.Float32}
	if p.DType == flashkit.Float32 {
		types = types[:1]
	}
	t.full = product(p.Batch, p.Heads, p.QLen, p.KVLen, elem, count)
	for _, x := range types {
		t.rows(kindMatrices, "one matrix", x, p.KVLen, 1)
		t.rows(kindMatrices, matrices, x, p.KVLen, count)
	}
	t.rows(kindStats, "m, l", flashkit.Float32, 1, 2)
	t.rows(kindStats, "LSE", flashkit.Float32, 1, 1)
	t.lse = product(p.Batch, p.Heads, p.QLen, 4)
	return t
}

// rows adds a line for count arrays of type x. Each array has the given number of elements per
// query row.
func (t *MemoryTable) rows(kind, name string, x flashkit.DType, elements, count int) {
	line := &MemoryLine{Name: name, Kind: kind, DType: x.String(), OneHead: product(t.p.QLen, elements, x.Size(), count)}
	line.Bytes = new(big.Int).Mul(line.OneHead, t.Heads)
	line.Note = fmt.Sprintf("%d x %d bytes", t.p.QLen, x.Size())
	if kind == kindMatrices {
		line.Note = fmt.Sprintf("%d x %d x %d bytes", t.p.QLen, elements, x.Size())
	}
	if count > 1 {
		line.Note = fmt.Sprintf("%d x %s", count, line.Note)
	}
	t.compare(line)
}

// Add adds a kernel's line. It sets the line's bytes to the sum of LSE, the workspace in host
// memory and the workspace in device memory. The host workspace is the measured size, or else the
// size by formula. Add sets no bytes if the line has a note, or has neither a host workspace nor
// device memory.
func (t *MemoryTable) Add(line *MemoryLine) {
	workspace := line.Measured
	if workspace == nil {
		workspace = line.Formula
	}
	if line.Note != "" || workspace == nil && line.Device == nil {
		t.Lines = append(t.Lines, line)
		return
	}
	line.Bytes = sum(t.lse, workspace)
	if line.Device != nil {
		line.Bytes.Add(line.Bytes, big.NewInt(line.Device.Workspace))
	}
	if t.Heads.Sign() > 0 {
		up := sum(line.Bytes, t.Heads, big.NewInt(-1))
		line.OneHead = up.Div(up, t.Heads)
	}
	t.compare(line)
}

func (t *MemoryTable) compare(line *MemoryLine) {
	if line.Bytes.Sign() > 0 {
		line.Ratio, _ = new(big.Rat).SetFrac(t.full, line.Bytes).Float64()
	}
	t.Lines = append(t.Lines, line)
}

// AddMissing adds a line for each missing backend.
func (t *MemoryTable) AddMissing(missing []dispatch.Missing) {
	for _, m := range missing {
		t.Lines = append(t.Lines, &MemoryLine{Name: m.Backend, Kind: kindMissing, Note: machine.Reason(m)})
	}
}

// from returns a text that explains the bytes of a line: the terms of the sum, and whether the
// workspace is measured or computed by formula.
func (l *MemoryLine) from() string {
	if l.Note != "" {
		return l.Note
	}
	text := "LSE"
	if l.Measured != nil {
		text += " + " + FormatSize(l.Measured) + " measured"
	}
	switch {
	case l.Formula != nil && l.Measured != nil:
		text += " (" + FormatSize(l.Formula) + " by formula)"
	case l.Formula != nil:
		text += " + " + FormatSize(l.Formula) + " by formula"
	}
	if l.Device != nil {
		text += fmt.Sprintf(" + %s of the device, besides %s of tensors there", terminal.Bytes(float64(l.Device.Workspace)), terminal.Bytes(float64(l.Device.Tensors)))
	}
	if l.Unmeasured != "" && l.Unmeasured != formulaOnly {
		text += "; not measured: " + l.Unmeasured
	}
	return text
}

// FormatSize formats a size. It returns "" for nil.
func FormatSize(n *big.Int) string {
	if n == nil {
		return ""
	}
	x, _ := new(big.Float).SetInt(n).Float64()
	return terminal.Bytes(x)
}

// FormatRatio formats a ratio. It returns "" for 0.
func FormatRatio(x float64) string {
	switch {
	case x == 0:
		return ""
	case x < 10:
		return strconv.FormatFloat(x, 'g', 3, 64)
	}
	return strconv.FormatFloat(x, 'f', 0, 64)
}

// WriteMemoryText prints the tables as text.
func WriteMemoryText(w io.Writer, tables []*MemoryTable) error {
	w = terminal.Writer(w)
	for i, t := range tables {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s, %s: %s of tensors, and besides them\n", t.Problem, t.Pass, FormatSize(t.Tensors))
		tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		fmt.Fprintf(tw, "\tone head\tin all\tratio\thow\n")
		for _, l := range t.Lines {
			name := l.Name
			if l.DType != "" {
				name += " in " + l.DType
			}
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", name, FormatSize(l.OneHead), FormatSize(l.Bytes), FormatRatio(l.Ratio), l.from())
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// WriteMemoryCSV prints the tables as CSV.
func WriteMemoryCSV(w io.Writer, tables []*MemoryTable) error {
	c := csv.NewWriter(w)
	c.Write([]string{"problem", "pass", "name", "kind", "dtype", "one_head_bytes", "bytes", "ratio",
		"workspace_formula_bytes", "workspace_measured_bytes", "device_tensor_bytes", "device_workspace_bytes", "unmeasured", "note"})
	exact := func(n *big.Int) string {
		if n == nil {
			return ""
		}
		return n.String()
	}
	for _, t := range tables {
		for _, l := range t.Lines {
			ratio, tensors, workspace := "", "", ""
			if l.Ratio != 0 {
				ratio = strconv.FormatFloat(l.Ratio, 'g', -1, 64)
			}
			if l.Device != nil {
				tensors, workspace = strconv.FormatInt(l.Device.Tensors, 10), strconv.FormatInt(l.Device.Workspace, 10)
			}
			c.Write([]string{t.Problem, t.Pass, l.Name, l.Kind, l.DType, exact(l.OneHead), exact(l.Bytes), ratio,
				exact(l.Formula), exact(l.Measured), tensors, workspace, l.Unmeasured, l.Note})
		}
	}
	c.Flush()
	return c.Error()
}

// Written returns the line of all matrices together, stored in the problem's element type.
func (t *MemoryTable) Written() *MemoryLine {
	i := slices.IndexFunc(t.Lines, func(l *MemoryLine) bool {
		return l.Kind == kindMatrices && l.DType == t.p.DType.String() && l.Bytes.Cmp(t.full) == 0
	})
	return t.Lines[i]
}
