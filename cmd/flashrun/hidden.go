package main

import (
	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit/internal/replay"
)

// newBurn is the process of replay.Burn.
func newBurn() *cobra.Command {
	return &cobra.Command{Use: "burn", Hidden: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return failed(replay.Burn(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout()))
	}}
}

// newReplay is the process of replay.Serve.
func newReplay() *cobra.Command {
	return &cobra.Command{Use: "replay", Hidden: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return runError(replay.Serve(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout()))
	}}
}
