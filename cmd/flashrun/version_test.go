package main

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBuildText(t *testing.T) {
	always := runtime.Version() + ", " + runtime.GOOS + "/" + runtime.GOARCH
	for want, settings := range map[string][]debug.BuildSetting{
		always:                   nil,
		"commit 12ab, " + always: {{Key: "vcs.revision", Value: "12ab"}, {Key: "vcs.modified", Value: "false"}},
		"commit 12ab with changes, " + always + ", tags nocuda,purego": {
			{Key: "-tags", Value: "nocuda,purego"}, {Key: "vcs.revision", Value: "12ab"}, {Key: "vcs.modified", Value: "true"}},
	} {
		require.Equal(t, want, buildText(&debug.BuildInfo{Settings: settings}))
	}
	require.Equal(t, always, buildText(nil))
}
