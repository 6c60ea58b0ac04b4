package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"text/template"
	"time"
)

// A result is a file of bench/results: a table, with the machine, date and commands of the
// measurement.
type result struct {
	Title    string   `json:"title"`
	Question string   `json:"question"` // the question that the table answers, and the unit of its numbers
	Machine  string   `json:"machine"`
	Date     string   `json:"date"`   // 2006-01-02
	Peers    []string `json:"peers"`  // names with versions
	Repeat   []string `json:"repeat"` // commands that repeat the measurement
	Columns  []string `json:"columns"`
	Rows     [][]any  `json:"rows"` // cells: strings, and numbers as they are written in the file
	Notes    []string `json:"notes"`
}

//go:embed page.md.tmpl
var pageTemplate string

// page returns the text of the page. It returns an error unless every result appears exactly once.
func page(results fs.FS) ([]byte, error) {
	files, err := fs.Glob(results, "*.json")
	if err != nil {
		return nil, err
	}
	table := func(name string, level int) (string, error) {
		i := slices.Index(files, name+".json")
		if i < 0 {
			return "", errors.New("no such result, or used twice")
		}
		files = slices.Delete(files, i, i+1)
		r, err := readResult(results, name+".json")
		if err != nil {
			return "", err
		}
		return r.markdown(level), nil
	}
	t, err := template.New("page").Funcs(template.FuncMap{"table": table}).Parse(pageTemplate)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, nil); err != nil {
		return nil, err
	}
	if len(files) > 0 {
		return nil, fmt.Errorf("page.md.tmpl has no table for %s", strings.Join(files, ", "))
	}
	return b.Bytes(), nil
}

func readResult(results fs.FS, name string) (r result, err error) {
	text, err := fs.ReadFile(results, name)
	if err != nil {
		return r, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, fmt.Errorf("%s: %w", name, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return r, fmt.Errorf("%s: text after the result", name)
	}
	if err := r.check(); err != nil {
		return r, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}

func (r *result) check() error {
	for field, text := range map[string]string{"title": r.Title, "question": r.Question, "machine": r.Machine} {
		if text == "" {
			return fmt.Errorf("no %s", field)
		}
	}
	if _, err := time.Parse(time.DateOnly, r.Date); err != nil {
		return fmt.Errorf("date: %w", err)
	}
	if len(r.Columns) == 0 || len(r.Rows) == 0 || len(r.Repeat) == 0 {
		return errors.New("no columns, rows or repeat")
	}
	for i, row := range r.Rows {
		if len(row) != len(r.Columns) {
			return fmt.Errorf("row %d has %d cells; there are %d columns", i, len(row), len(r.Columns))
		}
		for _, x := range row {
			switch x.(type) {
			case string, json.Number:
			default:
				return fmt.Errorf("row %d: %v is neither text nor number", i, x)
			}
		}
	}
	return nil
}

// markdown returns the result as Markdown: a heading of the given level, the question, the table,
// machine and date, commands and notes.
func (r *result) markdown(level int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n\n%s\n\n", strings.Repeat("#", level), r.Title, r.Question)
	cells := slices.Clone(r.Columns)
	writeRow(&b, cells)
	for i := range cells {
		cells[i] = r.alignment(i)
	}
	b.WriteString("|" + strings.Join(cells, "|") + "|\n")
	for _, row := range r.Rows {
		for i, x := range row {
			cells[i] = fmt.Sprint(x)
		}
		writeRow(&b, cells)
	}
	fmt.Fprintf(&b, "\nHardware: %s. Date: %s.", r.Machine, r.Date)
	if len(r.Peers) > 0 {
		fmt.Fprintf(&b, " Peers: %s.", strings.Join(r.Peers, ", "))
	}
	b.WriteString("\n\n```sh\n" + strings.Join(r.Repeat, "\n") + "\n```\n\n")
	for _, note := range r.Notes {
		b.WriteString("- " + note + "\n")
	}
	return b.String()
}

// alignment returns the Markdown cell that aligns a column. In the table, this cell is below the
// heading. Columns without text are aligned to the right.
func (r *result) alignment(column int) string {
	for _, row := range r.Rows {
		if text, ok := row[column].(string); ok && text != "" {
			return "---"
		}
	}
	return "--:"
}

func writeRow(b *strings.Builder, cells []string) {
	for _, text := range cells {
		b.WriteString("| " + strings.ReplaceAll(text, "|", `\|`) + " ")
	}
	b.WriteString("|\n")
}
