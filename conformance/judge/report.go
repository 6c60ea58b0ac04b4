package judge

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// A Report holds the results of one implementation.
type Report struct {
	Name        string   `json:"name"` // the implementation, or the program's command line
	Passed      int      `json:"passed"`
	Failed      int      `json:"failed"`
	Unsupported int      `json:"unsupported"`
	Results     []Result `json:"results"`

	repro string // command line that runs a case again, up to the case's name
}

// NewReport counts the results of a run.
func NewReport(o Options, results []Result) *Report {
	r := &Report{Name: strings.Join(o.Program, " "), Results: results}
	r.repro = "flashrun judge --case %s -- " + strings.ReplaceAll(r.Name, "%", "%%")
	for _, x := range results {
		switch x.Status {
		case Passed:
			r.Passed++
		case Failed:
			r.Failed++
		case CannotRun:
			r.Unsupported++
		}
	}
	return r
}

// Formats are the names that Write accepts.
func Formats() []string { return []string{"text", "json", "markdown", "junit"} }

// Write writes the report in one of Formats.
func (r *Report) Write(w io.Writer, format string) error {
	switch format {
	case "text":
		return r.text(w)
	case "json":
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		e.SetIndent("", " ")
		return e.Encode(r)
	case "markdown":
		return r.markdown(w)
	case "junit":
		return r.junit(w)
	}
	return fmt.Errorf("format %q: must be %s", format, strings.Join(Formats(), ", "))
}

// lines returns how a failed result differs, one line for each fault.
func (x *Result) lines() (lines []string) {
	if x.Reason != "" {
		lines = append(lines, x.Reason)
	}
	for _, f := range x.Faults {
		lines = append(lines, f.String())
	}
	return lines
}

func (r *Report) text(w io.Writer) error {
	for i := range r.Results {
		x := &r.Results[i]
		if x.Status != Failed {
			continue
		}
		fmt.Fprintf(w, "FAIL %s: %s\n", x.Case, strings.Join(x.lines(), "\n     "))
		if x.Catches != "" {
			fmt.Fprintf(w, "     this case catches: %s\n", x.Catches)
		}
		fmt.Fprintf(w, "     rerun: "+r.repro+"\n", x.Case)
	}
	for _, reason := range r.reasons() {
		fmt.Fprintf(w, "unsupported: %s: %d cases\n", reason.text, reason.cases)
	}
	_, err := fmt.Fprintf(w, "%s: %d passed, %d failed, %d unsupported\n", r.Name, r.Passed, r.Failed, r.Unsupported)
	return err
}

type reason struct {
	text  string
	cases int
}

// reasons returns why cases cannot run, in the order of their first case.
func (r *Report) reasons() (list []reason) {
	at := map[string]int{}
	for _, x := range r.Results {
		if x.Status != CannotRun {
			continue
		}
		if _, ok := at[x.Reason]; !ok {
			at[x.Reason] = len(list)
			list = append(list, reason{text: x.Reason})
		}
		list[at[x.Reason]].cases++
	}
	return list
}

func (r *Report) markdown(w io.Writer) error {
	cell := strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;")
	fmt.Fprintf(w, "%s: %d passed, %d failed, %d unsupported\n\n| case | catches | difference |\n|---|---|---|\n", cell.Replace(r.Name), r.Passed, r.Failed, r.Unsupported)
	for i := range r.Results {
		if x := &r.Results[i]; x.Status == Failed {
			fmt.Fprintf(w, "| `%s` | %s | %s |\n", x.Case, cell.Replace(x.Catches), cell.Replace(strings.Join(x.lines(), "; ")))
		}
	}
	_, err := fmt.Fprintln(w)
	return err
}

type (
	junitSuite struct {
		XMLName  xml.Name    `xml:"testsuite"`
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Name    string    `xml:"name,attr"`
		Class   string    `xml:"classname,attr"`
		Failure *junitMsg `xml:"failure"`
		Skipped *junitMsg `xml:"skipped"`
	}
	junitMsg struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

func (r *Report) junit(w io.Writer) error {
	s := junitSuite{Name: r.Name, Tests: len(r.Results), Failures: r.Failed, Skipped: r.Unsupported}
	for i := range r.Results {
		x := &r.Results[i]
		c := junitCase{Name: x.Case, Class: r.Name}
		switch x.Status {
		case Failed:
			c.Failure = &junitMsg{x.Catches, strings.Join(x.lines(), "\n") + "\nrerun: " + fmt.Sprintf(r.repro, x.Case)}
		case CannotRun:
			c.Skipped = &junitMsg{Message: x.Reason}
		}
		s.Cases = append(s.Cases, c)
	}
	text, err := xml.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	_, err = w.Write(append([]byte(xml.Header), append(text, '\n')...))
	return err
}
