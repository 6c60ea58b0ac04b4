package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit/internal/machine"
)

func newVersion() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "Print version, commit, compiler and platform", Args: noArguments, RunE: func(cmd *cobra.Command, _ []string) error {
		_, err := fmt.Fprint(cmd.OutOrStdout(), versionLine())
		return failed(err)
	}}
}

func versionLine() string {
	return "flashrun version " + machine.Version() + " (" + build() + ")\n"
}

// build returns the commit, the compiler's version, the platform and the build tags. The Go tool
// records the commit in the binary.
func build() string {
	info, _ := debug.ReadBuildInfo()
	return buildText(info)
}

func buildText(info *debug.BuildInfo) string {
	settings := map[string]string{}
	if info != nil {
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
	}
	var parts []string
	if commit := settings["vcs.revision"]; commit != "" {
		if settings["vcs.modified"] == "true" {
			commit += " with changes"
		}
		parts = append(parts, "commit "+commit)
	}
	parts = append(parts, runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH)
	if tags := settings["-tags"]; tags != "" {
		parts = append(parts, "tags "+tags)
	}
	return strings.Join(parts, ", ")
}
