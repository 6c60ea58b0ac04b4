package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit"
)

var passNames = []string{"fwd", "bwd"}

// A passList is the value of --pass, a comma-separated list of passes. Repeated passes are dropped.
type passList []flashkit.Pass

// addPassFlag adds the flag --pass, which sets *to. Its default is the value of *to before the
// call.
func addPassFlag(cmd *cobra.Command, to *passList, usage string) {
	cmd.Flags().Var(to, "pass", usage)
	cmd.RegisterFlagCompletionFunc("pass", cobra.FixedCompletions(append(passNames, "fwd,bwd"), cobra.ShellCompDirectiveNoFileComp))
}

// Set implements pflag.Value.
func (l *passList) Set(s string) error {
	var list passList
	for name := range strings.SplitSeq(s, ",") {
		i := slices.Index(passNames, name)
		if i < 0 {
			return errors.New("must be a list of fwd and bwd")
		}
		if pass := flashkit.Pass(i); !slices.Contains(list, pass) {
			list = append(list, pass)
		}
	}
	*l = list
	return nil
}

// String implements pflag.Value.
func (l *passList) String() string {
	var names []string
	for _, p := range *l {
		names = append(names, passNames[p])
	}
	return strings.Join(names, ",")
}

// Type implements pflag.Value.
func (l *passList) Type() string { return "list" }

func (l passList) backward() bool { return slices.Contains(l, flashkit.PassBackward) }
