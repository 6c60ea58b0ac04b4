package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// An explained is one kernel's line in the output of flashrun explain.
type explained struct {
	Name    string  `json:"name"`
	Chosen  bool    `json:"chosen"`
	Reason  string  `json:"reason"`
	Seconds float64 `json:"predicted_seconds,omitempty"`
	Last    float64 `json:"last_seconds,omitempty"` // measured time of the kernel's last call on this problem

	// Seconds is Own * Factor.
	Own    float64 `json:"own_seconds,omitempty"` // the kernel's own cost estimate
	Factor float64 `json:"factor,omitempty"`      // measured time divided by Own
	From   string  `json:"from,omitempty"`        // source of Factor: profile, probe or cost
}

func (l *explained) why() string {
	return fmt.Sprintf("%s x %.2f (%s)", terminal.Seconds(l.Own), l.Factor, l.From)
}

// parameterList returns a part of the help text: one line for each optional suffix of a problem's
// name.
func parameterList() string {
	var b strings.Builder
	for _, x := range flashkit.Parameters() {
		fmt.Fprintf(&b, "\n  %-14s %s", "["+parameterForm(&x)+"]", x.About)
	}
	return b.String()
}

// parameterForm returns a parameter as a suffix of a problem's name, such as -softcap{c}.
func parameterForm(x *flashkit.Parameter) string {
	if x.Value == "" {
		return "-" + x.Name
	}
	return "-" + x.Name + "{" + x.Value + "}"
}

func newExplain() *cobra.Command {
	var backend string
	var asJSON bool
	passes := passList{flashkit.PassForward}
	cmd := &cobra.Command{
		Use:   "explain PROBLEM",
		Short: "Say which kernel runs a problem, and why not the others",
		Long: `Explain prints a verdict for every kernel, those that fit first: chosen, or the
reason why not; the time that dispatch predicts; what that is made of; and what the last call that is
remembered took.

A prediction is the kernel's own one, times measured over predicted time: of the
profile, on problems of about the size; else of a probe beside other kernels, by
two at most; else, marked cost, that of the best kernel which was measured, or 1.

A problem is named b{batch}-h{heads}-g{key heads}-n{rows}-m{keys}-d{head dim}
[-dv{value dim}]-{f32|f16|bf16}[-kv{f16|bf16}][-causal|-window{left}.{right}]
[-topleft][-shift{keys}], and then in this order
` + parameterList(),
		Example: `  flashrun explain b1-h8-g2-n128-m512-d64-f32-causal
  flashrun explain --pass bwd b1-h8-g8-n1024-m1024-d64-bf16-window128.0
  flashrun explain b4-h32-g8-n1-m4096-d128-f32-kvbf16-softcap50-ragged-page16`,
		Args: oneProblem,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := flashkit.ParseProblem(args[0])
			if err != nil {
				return err
			}
			d, err := openDispatch(cmd, backend)
			if err != nil {
				return err
			}
			defer d.Close()
			var lines []explained
			for _, pass := range passes {
				verdicts, err := d.Explain(p, pass)
				if err != nil {
					return err
				}
				for _, v := range verdicts {
					lines = append(lines, explained{v.Name, v.Chosen, v.Reason, v.Cost.Seconds(), v.Last.Seconds(),
						v.Own.Seconds(), v.Factor, string(v.From)})
				}
			}
			if asJSON {
				return failed(json.NewEncoder(cmd.OutOrStdout()).Encode(lines))
			}
			return failed(writeExplained(cmd.OutOrStdout(), lines))
		},
	}
	addPassFlag(cmd, &passes, "explain the kernels of this `list` of passes: fwd, bwd")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	addBackendFlag(cmd, &backend, "explain under this choice of backend or kernel")
	return cmd
}

// writeExplained writes the lines as a table. Kernels that support the problem come first.
func writeExplained(w io.Writer, lines []explained) error {
	t := tabwriter.NewWriter(terminal.Writer(w), 0, 8, 2, ' ', 0)
	fits := func(l explained) bool { return l.Seconds > 0 }
	lines = append(slices.DeleteFunc(slices.Clone(lines), func(l explained) bool { return !fits(l) }), slices.DeleteFunc(slices.Clone(lines), fits)...)
	anyLast := slices.ContainsFunc(lines, func(l explained) bool { return l.Last > 0 })
	for _, l := range lines {
		mark, predicted, last := " ", "\t", ""
		if l.Chosen {
			mark = "*"
		}
		if l.Seconds > 0 {
			predicted = "about " + terminal.Seconds(l.Seconds) + "\t" + l.why()
		}
		if l.Last > 0 {
			last = "last " + terminal.Seconds(l.Last)
		}
		if anyLast {
			last += "\t"
		}
		fmt.Fprintf(t, "%s %s\t%s\t%s%s\n", mark, l.Name, predicted, last, l.Reason)
	}
	return t.Flush()
}
