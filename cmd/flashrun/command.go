package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"

	"github.com/spf13/cobra"
)

// newBurn is the process of a crowd.
func newBurn() *cobra.Command {
	return &cobra.Command{Use: "burn", Hidden: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		var ended atomic.Bool
		context.AfterFunc(withStdin(cmd.Context(), cmd.InOrStdin()), func() { ended.Store(true) })
		if _, err := fmt.Fprintln(cmd.OutOrStdout()); err != nil {
			return failed(err)
		}
		for x := uint64(1); !ended.Load(); {
			for range 10000 {
				x = x*6364136223846793005 + 1442695040888963407
			}
			if x == 0 {
				return nil // never: so that the loop is not left out
			}
		}
		return nil
	}}
}

// newReplay is the process that replays a trace.
func newReplay() *cobra.Command {
	return &cobra.Command{Use: "replay", Hidden: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		stdin := bufio.NewReader(cmd.InOrStdin())
		line, err := stdin.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("the request: %w", err)
		}
		var r lifeRequest
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("the request: %w", err)
		}
		t, err := parseTrace(r.Name, r.Text)
		if err != nil {
			return err
		}
		run, err := live(withStdin(cmd.Context(), stdin), t, backendChoice(r.Backend), r.Seed)
		if err != nil {
			return runError(err)
		}
		return failed(json.NewEncoder(cmd.OutOrStdout()).Encode(run))
	}}
}
