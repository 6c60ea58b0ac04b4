package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit"
)

type maskFlags struct {
	causal  causalFlag
	window  string
	topLeft bool
	shift   int
}

var maskNames = []string{"causal", "window", "top-left", "shift"}

// add adds the flags of a mask. If both is true, --causal=both is also allowed: it requests a
// problem without a mask and a causal problem.
func (m *maskFlags) add(cmd *cobra.Command, both bool) {
	flags := cmd.Flags()
	m.causal.both = both
	usage := "no row sees a key after its own position"
	if both {
		usage += "; --causal=both measures without this mask too"
	}
	flags.Var(&m.causal, "causal", usage)
	flags.Lookup("causal").NoOptDefVal = "true"
	if both {
		cmd.RegisterFlagCompletionFunc("causal", cobra.FixedCompletions([]string{"true", "false", "both"}, cobra.ShellCompDirectiveNoFileComp))
	}
	flags.StringVar(&m.window, "window", "", "each row sees `L,R` keys before and after its position; inf for no limit")
	flags.BoolVar(&m.topLeft, "top-left", false, "align the mask to the first row and key, not to the last")
	flags.IntVar(&m.shift, "shift", 0, "move the mask by this `number` of keys: each row sees later ones, or earlier ones if negative")
}

// bands returns the band that the flags request. For --causal=both it returns two bands: one that
// hides nothing, and a causal band.
func (m *maskFlags) bands() (list []flashkit.Band, err error) {
	switch {
	case m.causal.yes && m.window != "":
		return nil, errors.New("--causal and --window exclude each other: causal is --window inf,0")
	case m.window != "":
		window, err := parseWindow(m.window)
		if err != nil {
			return nil, err
		}
		list = append(list, window)
	case m.causal.yes && m.causal.no:
		list = append(list, flashkit.Band{}, flashkit.Causal())
	case m.causal.yes:
		list = append(list, flashkit.Causal())
	default:
		list = append(list, flashkit.Band{})
	}
	for i, b := range list {
		if m.topLeft {
			b = b.TopLeft()
		}
		list[i] = b.Shift(m.shift)
	}
	return list, nil
}

// A causalFlag is the value of --causal: true, false or both.
type causalFlag struct {
	both    bool // --causal=both is allowed
	yes, no bool
}

// Set implements pflag.Value.
func (c *causalFlag) Set(s string) error {
	yes, err := strconv.ParseBool(s)
	switch {
	case s == "both" && c.both:
		c.yes, c.no = true, true
	case err == nil:
		c.yes, c.no = yes, !yes
	case c.both:
		return errors.New("must be true, false or both")
	default:
		return errors.New("must be true or false")
	}
	return nil
}

// String implements pflag.Value.
func (c *causalFlag) String() string {
	if c.yes && c.no {
		return "both"
	}
	return strconv.FormatBool(c.yes)
}

// Type implements pflag.Value.
func (c *causalFlag) Type() string { return "bool" }

func parseWindow(s string) (flashkit.Band, error) {
	l, r, ok := strings.Cut(s, ",")
	if !ok {
		return flashkit.Band{}, fmt.Errorf("--window %q: must be two numbers L,R", s)
	}
	var sides [2]int
	for i, side := range [...]string{l, r} {
		if side == "inf" {
			sides[i] = flashkit.Unlimited
			continue
		}
		n, err := strconv.Atoi(side)
		if err != nil || n < 0 {
			return flashkit.Band{}, fmt.Errorf("--window %q: %q must be 0 or more, or inf", s, side)
		}
		sides[i] = n
	}
	return flashkit.Window(sides[0], sides[1]), nil
}
