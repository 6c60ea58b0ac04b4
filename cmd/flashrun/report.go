package main

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/report"
)

type reportFlags struct {
	out    string
	format string
	plot   string
}

func newReport() *cobra.Command {
	f := new(reportFlags)
	cmd := &cobra.Command{
		Use:   "report RESULTS...",
		Short: "Make a page of plots from the JSON of flashrun bench",
		Long: `Report reads what flashrun bench --out wrote and makes one HTML file that needs
nothing else. It begins with the best kernel of each pass and type, how many times
faster it is than the portable one and than a peer, if one was measured, and its
share of the limit, of medians that are not in doubt, and one large plot of rates. Below, folded: rates and times of all problems, the roofline of each pass
with the limits that were measured, backend against backend, what dispatch runs
for each problem, memory with and without the matrices, and every result. A kernel
has the same color and mark in every report.

The results of an interrupted bench will do. Several files of one machine are
shown as one; a case that is in two of them is taken from the last.

With --out plot.svg, or --format svg, it writes a single figure as an SVG image.
Page and image follow the reader's light or dark setting.`,
		Example: `  flashrun bench --seq 128:4096:x2 --causal=both --out results.json
  flashrun report results.json -o report.html
  flashrun report results.json -o roofline.svg --plot roofline`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("RESULTS is missing: a JSON file of flashrun bench --out")
			}
			return nil
		},
		ValidArgsFunction: cobra.FixedCompletions([]string{"json"}, cobra.ShellCompDirectiveFilterFileExt),
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.out, "out", "o", "report.html", "write the page, or the image, to this `file`")
	flags.StringVar(&f.format, "format", "", "html or svg (default as the name of --out ends)")
	flags.StringVar(&f.plot, "plot", "time", "the `figure` of an SVG: "+strings.Join(report.PlotNames, ", "))
	cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"html", "svg"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RegisterFlagCompletionFunc("plot", cobra.FixedCompletions(report.PlotNames, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// check returns the format, html or svg, or an error that names the invalid flag.
func (f *reportFlags) check(cmd *cobra.Command) (format string, err error) {
	switch ext := strings.ToLower(filepath.Ext(f.out)); {
	case f.format == "html" || f.format == "svg":
		format = f.format
	case f.format != "":
		return "", fmt.Errorf("--format %q: must be html or svg", f.format)
	case ext == ".html" || ext == ".htm":
		format = "html"
	case ext == ".svg":
		format = "svg"
	default:
		return "", fmt.Errorf("--out %s: must end in .html or .svg, or --format must say which it is", f.out)
	}
	if format == "html" && cmd.Flags().Changed("plot") {
		return "", fmt.Errorf("--plot %s: a page has all plots; it goes with --format svg", f.plot)
	}
	for _, name := range report.PlotNames {
		if name == f.plot {
			return format, nil
		}
	}
	return "", fmt.Errorf("--plot %q: must be one of %s", f.plot, strings.Join(report.PlotNames, ", "))
}

func (f *reportFlags) run(cmd *cobra.Command, args []string) error {
	format, err := f.check(cmd)
	if err != nil {
		return err
	}
	r, err := bench.ReadFiles(args)
	if err != nil {
		return err
	}
	page := report.New(r)
	write, kind := page.WriteHTML, pageKind
	if format == "svg" {
		fig := page.Figure(f.plot)
		if len(fig.Parts) == 0 {
			return fmt.Errorf("--plot %s: nothing to draw: %s", f.plot, fig.Caption)
		}
		write, kind = func(w io.Writer) error { return page.WriteSVG(w, fig) }, imageKind
	}
	file, err := createOutput(f.out, kind, args)
	if err != nil {
		return err
	}
	if err := commit(file, write); err != nil {
		return failed(err)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %d results\n", f.out, len(r.Results))
	return nil
}
