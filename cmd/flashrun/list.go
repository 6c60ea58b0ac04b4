package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

type listed struct {
	Name      string   `json:"name"` // name of a kernel, of an unavailable backend or of a GPU
	Pass      string   `json:"pass,omitempty"`
	DTypes    []string `json:"dtypes,omitempty"`
	About     string   `json:"about,omitempty"`
	Requires  string   `json:"requires,omitempty"` // what the kernel requires of the machine
	Available bool     `json:"available"`
	Reason    string   `json:"reason,omitempty"` // why it is not available
	Device    *gpu     `json:"device,omitempty"` // set if the line describes a GPU
}

// A gpu describes a GPU in the output of flashrun list. --device accepts Number.
type gpu struct {
	Number     int    `json:"number"`
	Name       string `json:"name"`
	Bytes      int    `json:"bytes"`
	Capability string `json:"compute_capability"`
	SMs        int    `json:"multiprocessors"`
}

func listDevices(devices []cuda.Device) (lines []listed) {
	for i := range devices {
		d := &devices[i]
		g := &gpu{d.Ordinal, d.Name, d.Memory, fmt.Sprintf("%d.%d", d.Major, d.Minor), d.SMs}
		lines = append(lines, listed{Name: fmt.Sprintf("GPU %d", g.Number), Device: g, Available: d.Reason == "", Reason: d.Reason,
			About: fmt.Sprintf("%s, %s, compute capability %s, %d multiprocessors", g.Name, terminal.Bytes(float64(g.Bytes)), g.Capability, g.SMs)})
	}
	return lines
}

func newList() *cobra.Command {
	var backend string
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List every backend and kernel, and what this machine lacks",
		Example: "  flashrun list\n  flashrun list --backend simd\n  flashrun list --json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d := dispatch.All(cmd.Context())
			defer d.Close()
			warnOfProfile(cmd, d)
			devices, _ := cuda.Devices() // if there is no GPU, d.Missing has the reason
			lines := append(listDevices(devices), list(d)...)
			if backend != "" && backend != "auto" {
				lines = slices.DeleteFunc(lines, func(l listed) bool { return !l.of(backend) })
			}
			if len(lines) == 0 {
				_, err := d.With(backend)
				return err
			}
			if asJSON {
				return failed(json.NewEncoder(cmd.OutOrStdout()).Encode(lines))
			}
			table := printed(lines, true)
			if width := terminal.Width(cmd.OutOrStdout()); width > 0 && widest(table) > width {
				table = printed(lines, false)
			}
			_, err := terminal.Writer(cmd.OutOrStdout()).Write(table)
			return failed(err)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	addBackendFlag(cmd, &backend, "only this `name`: a backend or a kernel (default all)")
	return cmd
}

// of reports whether the line describes the named kernel, or a kernel or GPU of the named backend.
func (l *listed) of(name string) bool {
	return l.Name == name || bench.BackendOf(l.Name) == name || l.Device != nil && name == "cuda"
}

// printed returns the lines as a table. about adds a column with the kernels' descriptions.
func printed(lines []listed, about bool) []byte {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "machine\t%s/%s, %d CPUs, GOMAXPROCS %d\n", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.GOMAXPROCS(0))
	for _, l := range lines {
		switch {
		case l.Device != nil:
			fmt.Fprintf(t, "%s\t%s\n", l.Name, cmp.Or(l.Reason, l.About))
		case !l.Available:
			fmt.Fprintf(t, "%s\t%s\n", l.Name, l.Reason)
		case about:
			fmt.Fprintf(t, "%s\t%-*s%s\n", l.Name, len("backward, f32 f16 bf16  "), l.Pass+", "+strings.Join(l.DTypes, " "), l.About)
		default:
			fmt.Fprintf(t, "%s\t%s, %s\n", l.Name, l.Pass, strings.Join(l.DTypes, " "))
		}
	}
	t.Flush()
	return b.Bytes()
}

func widest(table []byte) (n int) {
	for line := range bytes.Lines(table) {
		n = max(n, utf8.RuneCount(bytes.TrimRight(line, "\n")))
	}
	return n
}

func list(d *dispatch.Dispatcher) []listed {
	var lines []listed
	for _, k := range d.Kernels() {
		l := listed{Name: k.Name, Pass: k.Pass.String(), DTypes: typeNames(k), About: k.About, Requires: k.Requires}
		if k.Missing != nil {
			l.Reason = k.Missing()
		}
		l.Available = l.Reason == ""
		lines = append(lines, l)
	}
	for _, m := range d.Missing() {
		lines = append(lines, listed{Name: m.Backend, Reason: machine.Reason(m)})
	}
	return lines
}

func typeNames(k flashkit.Kernel) (names []string) {
	for _, t := range k.DTypes {
		names = append(names, t.String())
	}
	return names
}
