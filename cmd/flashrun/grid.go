package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/bench"
)

type gridFlags struct {
	problems []string
	random   int
	batch    string
	heads    string
	kvHeads  string
	seq      string
	qLen     string
	headDim  string
	mask     maskFlags
	dtype    string
	features string
}

// gridNames are the flags that conflict with --problem and --random.
var gridNames = append([]string{"batch", "heads", "kv-heads", "seq", "q-len", "head-dim", "dtype", "features"}, maskNames...)

func (g *gridFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&g.problems, "problem", nil, "measure the problem of this `name` and no grid; repeat for more")
	flags.IntVar(&g.random, "random", 0, "measure so many random problems and no grid, drawn by --seed")
	flags.StringVar(&g.seq, "seq", "128:2048:x2", "query rows and keys: a `list` of numbers and of ranges from:to:x2 or from:to:+128")
	flags.StringVar(&g.qLen, "q-len", "", "query rows where they differ from --seq: a `list`, such as 1 to decode")
	flags.StringVar(&g.headDim, "head-dim", "64", "a `list` of head dims")
	flags.StringVar(&g.batch, "batch", "1", "a `list` of batch sizes")
	flags.StringVar(&g.heads, "heads", "8", "a `list` of query heads")
	flags.StringVar(&g.kvHeads, "kv-heads", "", "a `list` of key and value heads (default as many as --heads)")
	g.mask.add(cmd, true)
	flags.StringVar(&g.dtype, "dtype", "f32", "a `list` of types: f32, f16, bf16 and, with K and V in the second one, f32-kvf16, f32-kvbf16")
	flags.StringVar(&g.features, "features", "", "`what` each problem has beside, as the end of its name: softcap30-alibi-bias-mask-sink-dropout0.1-ragged-page16")
}

// grid returns the problems that the flags request: named problems, random problems, or every
// combination of the values in list flags.
func (g *gridFlags) grid(cmd *cobra.Command, seed uint64) ([]flashkit.Problem, error) {
	whole := ""
	switch {
	case g.random < 0 || g.random > bench.Limit:
		return nil, fmt.Errorf("--random %d: must be a number up to %d", g.random, bench.Limit)
	case len(g.problems) > 0 && g.random > 0:
		return nil, errors.New("--random: conflicts with --problem")
	case len(g.problems) > 0:
		whole = "problem"
	case g.random > 0:
		whole = "random"
	}
	for _, name := range gridNames {
		if whole != "" && cmd.Flags().Changed(name) {
			return nil, fmt.Errorf("--%s: conflicts with --%s", name, whole)
		}
	}
	switch whole {
	case "problem":
		return bench.ParseProblems(g.problems)
	case "random":
		return bench.RandomProblems(seed, g.random), nil
	}
	var axes bench.Axes
	for _, list := range []struct {
		flag, value string
		to          *[]int
	}{
		{"batch", g.batch, &axes.Batch}, {"heads", g.heads, &axes.Heads}, {"kv-heads", g.kvHeads, &axes.KvHeads},
		{"seq", g.seq, &axes.Seq}, {"q-len", g.qLen, &axes.QLen}, {"head-dim", g.headDim, &axes.HeadDim},
	} {
		if list.value == "" && !cmd.Flags().Changed(list.flag) {
			*list.to = []int{bench.AsOther}
			continue
		}
		var err error
		if *list.to, err = bench.ParseNumbers(list.value); err != nil {
			return nil, fmt.Errorf("--%s %q: %w", list.flag, list.value, err)
		}
	}
	var err error
	if axes.Masks, err = g.mask.bands(); err != nil {
		return nil, err
	}
	if axes.Dtypes, err = bench.ParseDTypes(g.dtype); err != nil {
		return nil, err
	}
	list, err := axes.Problems()
	if err != nil || g.features == "" {
		return list, err
	}
	for i, p := range list {
		if list[i], err = flashkit.ParseProblem(p.String() + "-" + g.features); err != nil {
			return nil, fmt.Errorf("--features %q: %w", g.features, err)
		}
	}
	return list, nil
}

// origin returns the flag that requested problem p, with its value, for an error message.
func (g *gridFlags) origin(p flashkit.Problem) string {
	switch {
	case len(g.problems) > 0:
		return "--problem " + p.String()
	case g.random > 0:
		return fmt.Sprintf("--random %d", g.random)
	}
	return fmt.Sprintf("--seq %d", p.KVLen)
}
