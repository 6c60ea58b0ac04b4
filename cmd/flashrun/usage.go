package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// What cobra says of a request that makes no sense, in the form of all messages: the flag or the argument,
// its value, the reason.

// usage sets how root and its commands refuse.
func usage(root *cobra.Command) {
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Args = func(_ *cobra.Command, args []string) error { return knownCommand(root, args) }
	}
}

// flagError says what is wrong with the value of a flag.
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
	_, name, _ := strings.Cut(err.Error(), ` for "`) // of the flag, after its letter if it has one; the value is quoted before
	name, _, _ = strings.Cut(name, `"`)
	cause := e.Unwrap()
	var number *strconv.NumError
	if errors.As(cause, &number) {
		cause = number.Err
	}
	return fmt.Errorf("%s %q: %w", name[strings.LastIndex(name, " ")+1:], e.GetValue(), cause)
}

// knownCommand refuses arguments that name no command. Those of a command are its own affair, and what
// shells ask for completions is cobra's.
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

// suggestion puts what cobra suggests into the line of the error.
func suggestion(err error) error {
	text, names, found := strings.Cut(err.Error(), "\n\nDid you mean this?\n")
	if !found {
		return err
	}
	return fmt.Errorf("%s: did you mean %s?", text, strings.Join(strings.Fields(names), " or "))
}

// noArguments refuses arguments of a command that has flags alone.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 && args[0] == "both" && cmd.Flags().Changed("causal") {
		return fmt.Errorf("argument %q: it is --causal=both", args[0])
	}
	if len(args) > 0 {
		return fmt.Errorf("argument %q: %s takes flags alone", args[0], cmd.CommandPath())
	}
	return nil
}

// oneProblem requires the name of a problem.
func oneProblem(cmd *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return errors.New("PROBLEM is missing: a name such as b1-h8-g2-n128-m512-d64-f32-causal")
	case 1:
		return nil
	}
	return fmt.Errorf("argument %q: %s takes one PROBLEM", args[1], cmd.CommandPath())
}
