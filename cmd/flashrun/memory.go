package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

type memoryFlags struct {
	backend string
	pass    passList
	meter   bench.MemoryMeter
	json    bool
	csv     bool
}

func newMemory() *cobra.Command {
	f := &memoryFlags{pass: passList{flashkit.PassForward, flashkit.PassBackward}}
	cmd := &cobra.Command{
		Use:   "memory PROBLEM...",
		Short: "Compare what attention allocates with and without its matrices",
		Long: `Memory prints what a problem takes besides its tensors: attention that writes out
its matrices, and each kernel of this machine.

Written out, the forward pass holds S = Q·K and P = softmax(S), the backward pass
S, P, dS and dP, each of rows times keys for every query head, whatever the mask
hides. They are given in the problem's type and in f32, in which many programs
hold them. A kernel keeps LSE, 4 bytes for each row of a head, and a workspace
that it forgets after the call; m and l, which older kernels keep in place of
LSE, take twice that.

The workspace is by formula, for the workers that a call would have, and
measured: the bytes that a first call allocates in the host's memory, on a
backend of its own. A call that is predicted to take longer than --limit, or
whose tensors pass 4 GiB or what is free, is not measured. For kernels of a
device, what they take there is by formula, and the tensors' copies there are
named beside it; memory of the host that its driver pins is not counted.

"One head" is the figure in all over the number of query heads of the batch. The
ratio is that of the matrices in the problem's type to the line's figure. A
published table that differs may count one matrix, all heads, or m and l. One
that is often copied says one head and gives four: 256 MB for 4096 rows and keys
in float32 is "one matrix" in all of b1-h4-g4-n4096-m4096-d64-f32.

A problem is named as for flashrun explain.`,
		Example: `  flashrun memory b1-h8-g8-n4096-m4096-d64-f32
  flashrun memory --pass bwd --backend simd b1-h8-g2-n1024-m1024-d64-bf16-causal
  flashrun memory --formula --csv b1-h1-g1-n1024-m1024-d64-f32 b1-h1-g1-n16384-m16384-d64-f32`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("a PROBLEM is missing: at least one name such as b1-h8-g2-n128-m512-d64-f32-causal")
			}
			return nil
		},
		ValidArgsFunction: completeProblem,
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	flags := cmd.Flags()
	addBackendFlag(cmd, &f.backend, "only the kernels of this backend or, for a kernel, of its variant (default all that are available)")
	addPassFlag(cmd, &f.pass, "a `list` of passes: fwd, bwd")
	flags.BoolVar(&f.meter.Formula, "formula", false, "do not measure")
	flags.DurationVar(&f.meter.Limit, "limit", 3*time.Second, "do not measure a call that takes longer than this")
	flags.BoolVar(&f.json, "json", false, "print one JSON array, an object for each problem and pass")
	flags.BoolVar(&f.csv, "csv", false, "print CSV, a line for each figure")
	return cmd
}

func completeProblem(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{
		"b1-h8-g8-n1024-m1024-d64-f32\tself-attention",
		"b1-h8-g2-n4096-m4096-d128-bf16-causal\tgrouped heads, causal",
		"b8-h32-g8-n1-m4096-d128-bf16-causal\tdecoding",
	}, cobra.ShellCompDirectiveNoFileComp
}

// check checks the flags and returns the problems that args name. An error names the invalid flag
// or argument.
func (f *memoryFlags) check(args []string) ([]flashkit.Problem, error) {
	if f.meter.Limit < 0 {
		return nil, fmt.Errorf("--limit %s: must not be negative", f.meter.Limit)
	}
	if f.json && f.csv {
		return nil, errors.New("--json and --csv exclude each other")
	}
	var problems []flashkit.Problem
	for _, name := range args {
		p, err := flashkit.ParseProblem(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		problems = append(problems, p)
	}
	return problems, nil
}

func (f *memoryFlags) run(cmd *cobra.Command, args []string) error {
	problems, err := f.check(args)
	if err != nil {
		return err
	}
	d, err := openDispatch(cmd, f.backend)
	if err != nil {
		return err
	}
	defer d.Close()
	show := terminal.NewProgress(cmd.ErrOrStderr())
	defer show.Done()
	var tables []*bench.MemoryTable
	for _, p := range problems {
		for _, s := range f.pass {
			t := bench.NewMemoryTable(p, s)
			for _, k := range d.Kernels() {
				if k.Pass != s {
					continue
				}
				show.Start(k.Name, 0)
				line, err := f.meter.Measure(cmd.Context(), p, k)
				if err != nil {
					return runError(err)
				}
				t.Add(line)
			}
			if backendChoice(f.backend) == "auto" {
				t.AddMissing(d.Missing())
			}
			tables = append(tables, t)
		}
	}
	show.Done()
	w := cmd.OutOrStdout()
	switch {
	case f.json:
		return failed(json.NewEncoder(w).Encode(tables))
	case f.csv:
		return failed(bench.WriteMemoryCSV(w, tables))
	}
	return failed(bench.WriteMemoryText(w, tables))
}
