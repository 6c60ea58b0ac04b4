package main

import (
	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit/internal/replay"
)

// newBurn returns a hidden command that runs replay.Burn, which keeps a core busy during a replay.
func newBurn() *cobra.Command {
	return &cobra.Command{Use: "burn", Hidden: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return failed(replay.Burn(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout()))
	}}
}

// newReplay returns a hidden command that runs replay.Serve, which replays one trace in a fresh
// process.
func newReplay() *cobra.Command {
	return &cobra.Command{Use: "replay", Hidden: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return runError(replay.Serve(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout()))
	}}
}
