package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
)

// A listed is one line of flashrun list.
type listed struct {
	Name      string   `json:"name"` // kernel, or backend when it is unavailable
	Pass      string   `json:"pass,omitempty"`
	DTypes    []string `json:"dtypes,omitempty"`
	Available bool     `json:"available"`
	Reason    string   `json:"reason,omitempty"` // why it is not available
}

func newList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List every backend and kernel, and what this machine lacks",
		Example: "  flashrun list\n  flashrun list --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d := dispatch.All(cmd.Context())
			defer d.Close()
			warnOfProfile(cmd, d)
			lines := list(d)
			if asJSON {
				return failed(json.NewEncoder(cmd.OutOrStdout()).Encode(lines))
			}
			t := tabwriter.NewWriter(text(cmd.OutOrStdout()), 0, 8, 2, ' ', 0)
			fmt.Fprintf(t, "machine\t%s/%s, %d CPUs, GOMAXPROCS %d\n", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.GOMAXPROCS(0))
			for _, l := range lines {
				if l.Available {
					fmt.Fprintf(t, "%s\t%s, %s\n", l.Name, l.Pass, strings.Join(l.DTypes, " "))
				} else {
					fmt.Fprintf(t, "%s\t%s\n", l.Name, l.Reason)
				}
			}
			return failed(t.Flush())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return cmd
}

func list(d *dispatch.Dispatcher) []listed {
	var lines []listed
	for _, k := range d.Kernels() {
		l := listed{Name: k.Name, Pass: k.Pass.String()}
		if k.Missing != nil {
			l.Reason = k.Missing()
		}
		for _, t := range []flashkit.DType{flashkit.Float32, flashkit.Float16, flashkit.BFloat16} {
			p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 64, KVLen: 64, Dim: 64, VDim: 64, DType: t}
			if reason := k.Fits(p.Ask(k.Pass)); reason == "" {
				l.DTypes = append(l.DTypes, t.String())
			} else if l.Reason == "" {
				l.Reason = reason
			}
		}
		if l.Available = len(l.DTypes) > 0; l.Available {
			l.Reason = ""
		}
		lines = append(lines, l)
	}
	for _, m := range d.Missing() {
		lines = append(lines, listed{Name: m.Backend, Reason: reasonOf(m)})
	}
	return lines
}

// reasonOf returns why a backend is missing, without its name.
func reasonOf(m dispatch.Missing) string { return strings.TrimPrefix(m.Err.Error(), m.Backend+": ") }

// backendOf returns the backend's part of a kernel's name.
func backendOf(kernel string) string {
	backend, _, _ := strings.Cut(kernel, "/")
	return backend
}
