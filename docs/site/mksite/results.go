package main

import (
	"encoding/json"
	"fmt"
	"html/template"
	"strings"

	"github.com/flashkit-go/flashkit"
)

type result struct {
	Title         string
	Before, After template.HTML
	Table         template.HTML
}

// readResults returns tables from README.md and docs/performance.md, and a table of the example
// report's results.
func readResults(root, readme string) ([]result, error) {
	performance, err := read(root, "docs/performance.md")
	if err != nil {
		return nil, err
	}
	var list []result
	for _, t := range []struct{ title, text string }{
		{"Beside others", section(readme, "Speed")},
		{"WebAssembly", section(performance, "WebAssembly")},
	} {
		before, rows, after, err := table(t.text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.title, err)
		}
		list = append(list, result{Title: t.title, Before: inline(before), After: inline(after), Table: rows})
	}
	r, err := readGrid(root)
	return append(list, r), err
}

// grid has the fields of docs/report/grid.json that the page needs. The command `make
// report-example` writes that file.
type grid struct {
	Machine struct {
		CPU  string `json:"cpu"`
		CPUs int    `json:"cpus"`
	} `json:"machine"`
	Results []struct {
		Problem string  `json:"problem"`
		Pass    string  `json:"pass"`
		Kernel  string  `json:"kernel"`
		Chosen  bool    `json:"chosen"`
		GFLOPS  float64 `json:"gflops"`
	} `json:"results"`
}

var columns = []struct {
	title, pass string
	dtype       flashkit.DType
}{
	{"f32 forward", "forward", flashkit.Float32}, {"f32 backward", "backward", flashkit.Float32},
	{"bf16 forward", "forward", flashkit.BFloat16}, {"bf16 backward", "backward", flashkit.BFloat16},
}

// readGrid returns a table of the rates of the kernels that dispatch chose, for problems without a
// mask. Each row is for one sequence length.
func readGrid(root string) (r result, err error) {
	const file = "docs/report/grid.json"
	text, err := read(root, file)
	if err != nil {
		return r, err
	}
	var g grid
	if err := json.Unmarshal([]byte(text), &g); err != nil {
		return r, fmt.Errorf("%s: %w", file, err)
	}
	var lengths []int
	rates, heads := map[int][]string{}, 0
	for _, x := range g.Results {
		p, err := flashkit.ParseProblem(x.Problem)
		if err != nil {
			return r, fmt.Errorf("%s: %w", file, err)
		}
		for i, c := range columns {
			if !x.Chosen || p.Band != (flashkit.Band{}) || p.DType != c.dtype || x.Pass != c.pass {
				continue
			}
			if rates[p.QLen] == nil {
				lengths, rates[p.QLen], heads = append(lengths, p.QLen), make([]string, len(columns)), p.Heads
			}
			rates[p.QLen][i] = fmt.Sprintf("%.0f <span class=\"dim\">%s</span>", x.GFLOPS, template.HTMLEscapeString(strings.TrimPrefix(x.Kernel, "simd/")))
		}
	}
	if len(lengths) == 0 {
		return r, fmt.Errorf("%s: no result that dispatch chose", file)
	}
	var b strings.Builder
	b.WriteString("<table><thead><tr><th>rows and keys</th>")
	for _, c := range columns {
		b.WriteString("<th>" + c.title + "</th>")
	}
	b.WriteString("</tr></thead>\n<tbody>\n")
	for _, n := range lengths {
		fmt.Fprintf(&b, "<tr><td>%d</td><td>%s</td></tr>\n", n, strings.Join(rates[n], "</td><td>"))
	}
	b.WriteString("</tbody></table>")
	about := fmt.Sprintf("GFLOP/s of the kernel that dispatch chose on %d cores of an %s, %d heads, head dim 64, no mask: the example report.", g.Machine.CPUs, g.Machine.CPU, heads)
	return result{Title: "By length", Before: template.HTML(template.HTMLEscapeString(about)), Table: template.HTML(b.String())}, nil
}
