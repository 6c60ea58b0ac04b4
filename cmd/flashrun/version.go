package main

import (
	"runtime"
	"runtime/debug"
	"strings"
)

// build returns what --version prints after the version: the commit that the Go tool
// recorded, the compiler, the platform and the build tags.
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
