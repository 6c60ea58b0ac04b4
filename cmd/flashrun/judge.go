package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit/conformance/judge"
)

func newJudge() *cobra.Command {
	var o judge.Options
	var format string
	cmd := &cobra.Command{
		Use:   "judge [flags] -- PROGRAM [ARGUMENT]...",
		Short: "Run the golden vectors on a program in any language",
		Long: `Judge calls a program once for each golden vector in each type. The last argument is a
folder with case.json and inputs.safetensors. The program writes outputs.safetensors into
this folder. With exit status 77 it refuses a case, and prints the reason as its last line.
Judge compares the outputs with the error bounds of the case. A failure prints the wrong
elements, the mistake that the case catches, and the line that runs the case again.`,
		Example: `  flashrun judge -- ./runner
  flashrun judge --case 'causal_*' --keep cases -- ./runner
  flashrun judge --format junit -- node runner.mjs > judge.xml`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("PROGRAM is missing")
			}
			if !slices.Contains(judge.Formats(), format) {
				return fmt.Errorf("--format %q: must be one of %s", format, strings.Join(judge.Formats(), ", "))
			}
			if o.Timeout < 0 {
				return fmt.Errorf("--timeout %v: must not be negative", o.Timeout)
			}
			o.Program = args
			return runJudge(cmd, o, format)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Case, "case", "", "only cases whose name matches this `pattern`")
	flags.StringVar(&format, "format", "text", "text, json, markdown or junit")
	flags.StringVar(&o.Keep, "keep", "", "keep the folders of the cases in this `folder`")
	flags.DurationVar(&o.Timeout, "timeout", time.Minute, "time limit of the program for one case; 0 for none")
	return cmd
}

func runJudge(cmd *cobra.Command, o judge.Options, format string) error {
	results, err := judge.Run(cmd.Context(), o)
	if err != nil {
		return err
	}
	r := judge.NewReport(o, results)
	if err := r.Write(cmd.OutOrStdout(), format); err != nil {
		return failed(err)
	}
	if r.Failed > 0 {
		return failed(fmt.Errorf("%d cases failed", r.Failed))
	}
	return nil
}
