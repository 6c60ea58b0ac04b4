package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit/conformance"
	"github.com/flashkit-go/flashkit/conformance/mutants"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// A tally counts the results of one kernel.
type tally struct {
	Kernel      string    `json:"kernel"`
	Passed      int       `json:"passed"`
	Failed      int       `json:"failed"`
	Unsupported int       `json:"unsupported"`
	Random      int       `json:"random,omitempty"` // number of random problems, included in the counts above
	Seed        uint64    `json:"seed,omitempty"`   // seed of the random problems
	Failures    []failing `json:"failures,omitempty"`
}

type failing struct {
	Case    string `json:"case"`
	Error   string `json:"error"`
	Catches string `json:"catches,omitempty"`
	Rerun   string `json:"rerun"`
}

type conformanceFlags struct {
	backend string
	options conformance.Options
	quick   bool
	json    bool
	list    bool
	mutants bool
}

func newConformance() *cobra.Command {
	var f conformanceFlags
	cmd := &cobra.Command{
		Use:   "conformance",
		Short: "Run the conformance suite on every kernel of this machine",
		Long: `Conformance holds every kernel to the same golden vectors: 108 grid problems and
the named traps, each in f32, f16 and bf16, then rows of 65,536 keys and columns
of as many rows, questions of conduct, and backward kernels on what other forward
kernels wrote. Random problems against the float64 oracle follow, for a minute, drawn
from --seed: --budget sets another time, --sweep a number of problems instead, and
--quick leaves them out, as does --case. Traps of features, and all traps as padded,
packed and paged sequences, are for the kernels that take these. A failure prints
what the case catches, which elements are wrong, and the line that runs it again alone.

FLASHKIT_REQUIRE=simd/fwd_avx512,... makes it a failure when one of these kernels
passes no case on this machine.`,
		Example: `  flashrun conformance
  flashrun conformance --quick
  flashrun conformance --backend simd --sweep 500
  flashrun conformance --kernel simd/fwd_generic --case causal_tall
  flashrun conformance --case 'gqa_*'
  flashrun conformance --mutants`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	addBackendFlag(cmd, &f.backend, "only the kernels of this backend or, for a kernel, of its variant (default all that are available)")
	flags.StringVar(&f.options.Kernel, "kernel", "", "only kernels whose full name matches this `pattern`")
	flags.StringVar(&f.options.Case, "case", "", "only cases whose name matches this `pattern`")
	flags.DurationVar(&f.options.Budget, "budget", time.Minute, "how long random problems are drawn after all other cases")
	flags.IntVar(&f.options.Sweep, "sweep", 0, "this many random problems for each kernel instead, as many with features, as many tiny ones and as many wide ones")
	flags.Uint64Var(&f.options.Seed, "seed", 1, "seed of the random problems")
	flags.BoolVar(&f.quick, "quick", false, "no random problems")
	flags.BoolVar(&f.list, "list", false, "print the traps and what each catches, and run nothing")
	flags.BoolVar(&f.mutants, "mutants", false, "test the suite itself: every trap must catch the mutant of its name")
	flags.BoolVar(&f.json, "json", false, "print one JSON array, an object for each kernel")
	return cmd
}

func (f *conformanceFlags) run(cmd *cobra.Command) error {
	w := cmd.OutOrStdout()
	if f.list {
		for _, c := range slices.Concat(conformance.Traps(), conformance.Long()) {
			fmt.Fprintf(w, "%-22s %-48s %s\n", c.Name, c.Problem, c.Catches)
		}
		return nil
	}
	if f.mutants {
		return failed(f.runMutants(cmd.Context(), w))
	}
	if err := f.options.Validate(); err != nil {
		return err
	}
	if err := f.setSweep(cmd); err != nil {
		return err
	}
	d, err := openDispatch(cmd, f.backend)
	if err != nil {
		return err
	}
	defer d.Close()
	f.options.Backends = d.Backends()
	tallies, err := f.runAll(cmd.Context(), d, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	if f.json {
		err = json.NewEncoder(w).Encode(tallies)
	} else {
		err = f.printTallies(w, tallies)
	}
	return failed(errors.Join(err, f.verdict(tallies)))
}

// setSweep checks the flags for random problems. --sweep gives their number, and --quick omits
// them. With one of these flags, setSweep sets the time for further random problems to 0.
func (f *conformanceFlags) setSweep(cmd *cobra.Command) error {
	flags, o := cmd.Flags(), &f.options
	counted := flags.Changed("sweep")
	switch {
	case o.Sweep < 0:
		return fmt.Errorf("--sweep %d: must not be negative", o.Sweep)
	case o.Budget < 0:
		return fmt.Errorf("--budget %v: must not be negative", o.Budget)
	case f.quick && counted:
		return errors.New("--quick and --sweep: want one of them")
	case (f.quick || counted) && flags.Changed("budget"):
		return errors.New("--budget: not with --quick or --sweep")
	case f.quick || counted:
		o.Budget = 0
	}
	return nil
}

// runMutants runs each mutant kernel on one test case. A mutant has one deliberate bug, which its
// test case must detect. runMutants returns an error if a mutant passes.
func (f *conformanceFlags) runMutants(ctx context.Context, w io.Writer) error {
	survivors := 0
	for _, name := range mutants.Names() {
		b, err := mutants.New(name)
		if err != nil {
			return err
		}
		how := conformance.Caught(ctx, b.Kernels(), name)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if how == nil {
			survivors++
			fmt.Fprintf(w, "FAIL %s survives its trap\n", name)
			continue
		}
		fmt.Fprintf(w, "%-22s caught: %v\n", name, how)
	}
	_, err := fmt.Fprintf(w, "%d passed, %d failed\n", len(mutants.Names())-survivors, survivors)
	if survivors > 0 {
		err = errors.Join(err, fmt.Errorf("%d mutants survive", survivors))
	}
	return err
}

func (f *conformanceFlags) runAll(ctx context.Context, d *dispatch.Dispatcher, stderr io.Writer) ([]*tally, error) {
	show := terminal.NewProgress(stderr)
	defer show.Done()
	kernels := d.Kernels()
	total := f.options.Count(kernels)
	var tallies []*tally
	byKernel := map[string]*tally{}
	done := 0
	for r := range conformance.Results(ctx, kernels, f.options) {
		t := byKernel[r.Kernel]
		if t == nil {
			t = &tally{Kernel: r.Kernel}
			tallies, byKernel[r.Kernel] = append(tallies, t), t
		}
		t.add(r)
		if strings.HasPrefix(r.Case, "sweep-") {
			t.Random, t.Seed = t.Random+1, f.options.Seed
		}
		if done++; done <= total {
			show.Say(fmt.Sprintf("%d of %d: %s %s", done, total, r.Kernel, r.Case))
		} else {
			show.Say(fmt.Sprintf("%d random problems for %v: %s %s", done-total, f.options.Budget, r.Kernel, r.Case))
		}
	}
	if done == 0 && ctx.Err() == nil {
		return nil, errors.New("no kernel and case match --backend, --kernel and --case")
	}
	return tallies, failed(ctx.Err())
}

func (t *tally) add(r conformance.Result) {
	switch {
	case r.Unsupported():
		t.Unsupported++
	case r.Err != nil:
		t.Failed++
		t.Failures = append(t.Failures, failing{r.Case, r.Err.Error(), r.Catches, r.Rerun()})
	default:
		t.Passed++
	}
}

func (f *conformanceFlags) printTallies(w io.Writer, tallies []*tally) error {
	w = terminal.Writer(w)
	var sum tally
	for _, t := range tallies {
		for _, x := range t.Failures {
			fmt.Fprintf(w, "FAIL %s %s: %s\n", t.Kernel, x.Case, x.Error)
			if x.Catches != "" {
				fmt.Fprintf(w, "     this case catches: %s\n", x.Catches)
			}
			fmt.Fprintf(w, "     rerun: %s\n", x.Rerun)
		}
		fmt.Fprintf(w, "%s: %d passed, %d failed, %d unsupported\n", t.Kernel, t.Passed, t.Failed, t.Unsupported)
		sum.Passed, sum.Failed, sum.Unsupported = sum.Passed+t.Passed, sum.Failed+t.Failed, sum.Unsupported+t.Unsupported
		sum.Random += t.Random
	}
	switch {
	case sum.Random > 0:
		fmt.Fprintf(w, "%d of them are random problems, drawn from seed %d\n", sum.Random, f.options.Seed)
	case f.quick:
		fmt.Fprintln(w, "no random problems: --quick")
	}
	_, err := fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", sum.Passed, sum.Failed, sum.Unsupported)
	return err
}

// verdict returns an error if a case failed. If all backends ran and --case is not set, it also
// returns an error for a required kernel that passed no case.
func (f *conformanceFlags) verdict(tallies []*tally) error {
	failures, passed := 0, map[string]bool{}
	for _, t := range tallies {
		failures += t.Failed
		passed[t.Kernel] = t.Passed > 0
	}
	var errs []error
	if failures > 0 {
		errs = append(errs, fmt.Errorf("%d cases failed", failures))
	}
	if backendChoice(f.backend) == "auto" && f.options.Case == "" {
		for _, name := range conformance.Required("") {
			asked, _ := path.Match(cmp.Or(f.options.Kernel, name), name)
			if asked && !passed[name] {
				errs = append(errs, fmt.Errorf("FLASHKIT_REQUIRE names %s, but it passed no case on this machine", name))
			}
		}
	}
	return errors.Join(errs...)
}
