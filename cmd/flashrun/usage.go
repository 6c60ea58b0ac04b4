package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// usage changes cobra's usage errors to the form of flashrun's other messages: flag or argument,
// value, reason.
func usage(root *cobra.Command) {
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Args = func(_ *cobra.Command, args []string) error { return knownCommand(root, args) }
	}
}

// flagError changes cobra's error about an invalid flag value to the form of flashrun's messages.
func flagError(err error) error {
	var e interface {
		error
		GetValue() string
		Unwrap() error
	}
	if !errors.As(err, &e) {
		if strings.HasSuffix(err.Error(), "unknown flag: --backward") {
			return fmt.Errorf("%w: it is --pass fwd,bwd", err)
		}
		return err
	}
	_, name, _ := strings.Cut(err.Error(), ` for "`) // cobra's text has the quoted value, then the flag's name, after its shorthand if it has one
	name, _, _ = strings.Cut(name, `"`)
	cause := e.Unwrap()
	var number *strconv.NumError
	if errors.As(cause, &number) {
		cause = number.Err
	}
	return fmt.Errorf("%s %q: %w", name[strings.LastIndex(name, " ")+1:], e.GetValue(), cause)
}

// knownCommand returns an error if args name an unknown command. It accepts completion requests of
// shells, which cobra handles.
func knownCommand(root *cobra.Command, args []string) error {
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		return nil
	}
	c, rest, err := root.Find(args)
	if err != nil {
		return suggestion(err)
	}
	if len(rest) > 0 && !c.Runnable() && !strings.HasPrefix(rest[0], "-") {
		return fmt.Errorf("unknown command %q for %q", rest[0], c.CommandPath())
	}
	return nil
}

// suggestion returns err as one line. This line has the commands that cobra suggests.
func suggestion(err error) error {
	text, names, found := strings.Cut(err.Error(), "\n\nDid you mean this?\n")
	if !found {
		return err
	}
	return fmt.Errorf("%s: did you mean %s?", text, strings.Join(strings.Fields(names), " or "))
}

// noArguments returns an error if a command that takes only flags gets arguments.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 && args[0] == "both" && cmd.Flags().Changed("causal") {
		return fmt.Errorf("argument %q: it is --causal=both", args[0])
	}
	if len(args) > 0 {
		return fmt.Errorf("argument %q: %s takes flags alone", args[0], cmd.CommandPath())
	}
	return nil
}

func oneProblem(cmd *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return errors.New("PROBLEM is missing: a name such as b1-h8-g2-n128-m512-d64-f32-causal")
	case 1:
		return nil
	}
	return fmt.Errorf("argument %q: %s takes one PROBLEM", args[1], cmd.CommandPath())
}
