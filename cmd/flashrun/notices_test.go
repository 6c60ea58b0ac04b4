package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const noticesPath = "../../THIRD_PARTY_NOTICES.md"

// releases are the platforms of make release.
var releases = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64", "windows/arm64"}

// embedded maps path prefixes of embedded files to their origins.
var embedded = map[string]string{
	"backends/cuda/images/":                       "compiled from `backends/cuda/kernels` by NVIDIA's nvcc",
	"backends/wasm/kernel/kernel.wasm":            "compiled from `backends/wasm/kernel/kernel.c` by Clang",
	"backends/wasm/kernel/kernel.sum":             "hashes of its source and of it",
	"internal/report/plot.css":                    "written here",
	"internal/report/report.css":                  "written here",
	"internal/report/report.tmpl":                 "written here",
	"internal/input/sample/attention.safetensors": "activations of a published model, below",
	"internal/replay/traces/":                     "written here",
	"conformance/testdata/":                       "random numbers, and results of `conformance/oracle`",
}

// A listedPackage is a package in the output of go list.
type listedPackage struct {
	ImportPath, Dir string
	Standard        bool
	EmbedFiles      []string
	Module          *struct {
		Path, Version, Dir string
		Main               bool
	}
}

// THIRD_PARTY_NOTICES.md names every module in the released programs, with the texts
// of its licenses, and every embedded file. make docs writes it.
func TestNotices(t *testing.T) {
	want := notices(t)
	if *writeDocs {
		require.NoError(t, os.WriteFile(noticesPath, want, 0o644))
	}
	got, err := os.ReadFile(noticesPath)
	require.NoError(t, err, "make docs writes it")
	require.Equal(t, string(want), string(unixLines(got)), "THIRD_PARTY_NOTICES.md is not what the modules say: make docs")
}

func unixLines(text []byte) []byte { return bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")) }

func notices(t *testing.T) []byte {
	modules := map[string]string{}           // folders by "path version"
	on := map[string][]string{}              // platforms
	licenses := map[string]map[string]bool{} // files
	embeds := map[string]bool{}
	for _, platform := range releases {
		for _, p := range listPackages(t, platform) {
			switch {
			case p.Standard || p.Module == nil:
			case p.Module.Main:
				for _, file := range p.EmbedFiles {
					embeds[path.Join(strings.TrimPrefix(p.ImportPath, p.Module.Path+"/"), filepath.ToSlash(file))] = true
				}
			default:
				name := p.Module.Path + " " + p.Module.Version
				modules[name] = p.Module.Dir
				if !slices.Contains(on[name], platform) {
					on[name] = append(on[name], platform)
				}
				if licenses[name] == nil {
					licenses[name] = map[string]bool{}
				}
				addLicenses(t, licenses[name], p.Module.Dir, p.Dir)
			}
		}
	}
	var b bytes.Buffer
	fmt.Fprint(&b, "# Third-party notices\n\nflashkit is under the Apache License 2.0, see LICENSE. The released `flashrun` programs also contain what\nfollows. `make docs` writes this file from the modules and files that the Go tool puts into them.\n\n")
	fmt.Fprint(&b, "| module | license | platforms |\n|---|---|---|\n")
	names := slices.Sorted(maps.Keys(modules))
	for _, name := range names {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, licenseNames(t, modules[name], licenses[name]), platformNames(on[name]))
	}
	fmt.Fprint(&b, "| Go standard library and runtime | BSD-3-Clause | all |\n\n")
	writeEmbedded(t, &b, embeds)
	for _, name := range names {
		for _, file := range slices.Sorted(maps.Keys(licenses[name])) {
			fmt.Fprintf(&b, "\n## %s: %s\n\n```text\n%s\n```\n", name, file, licenseText(t, modules[name], file))
		}
		if strings.HasPrefix(name, "golang.org/x/sys ") {
			fmt.Fprint(&b, "\nThe Go standard library and runtime have this license too, with the same notice.\n")
			checkGoLicense(t, licenseText(t, modules[name], "LICENSE"))
		}
	}
	return b.Bytes()
}

// listPackages returns the packages of flashrun on a platform. Only make docs may download missing
// modules.
func listPackages(t *testing.T, platform string) (list []listedPackage) {
	goos, goarch, _ := strings.Cut(platform, "/")
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,Standard,EmbedFiles,Module", ".")
	cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0", "GOFLAGS=-mod=readonly")
	if !*writeDocs {
		cmd.Env = append(cmd.Env, "GOPROXY=off")
	}
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil && strings.Contains(problems.String(), "module lookup disabled by GOPROXY=off") {
		t.Skipf("the module cache lacks what %s needs: go mod download", platform)
	}
	require.NoError(t, err, problems.String())
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listedPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return list
		} else {
			require.NoError(t, err)
		}
		list = append(list, p)
	}
}

// addLicenses adds the license files of a package's folder and its parents, up to the module root.
func addLicenses(t *testing.T, to map[string]bool, root, dir string) {
	for ; ; dir = filepath.Dir(dir) {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, entry := range entries {
			name := strings.ToUpper(entry.Name())
			if !entry.IsDir() && slices.ContainsFunc([]string{"LICENSE", "LICENCE", "COPYING", "NOTICE", "PATENTS"}, func(s string) bool { return strings.HasPrefix(name, s) }) {
				file, err := filepath.Rel(root, filepath.Join(dir, entry.Name()))
				require.NoError(t, err)
				to[filepath.ToSlash(file)] = true
			}
		}
		if dir == root {
			return
		}
	}
}

func licenseText(t *testing.T, root, file string) string {
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
	require.NoError(t, err)
	var lines []string
	for line := range strings.Lines(string(unixLines(text))) {
		lines = append(lines, strings.TrimRight(line, " \t\n"))
	}
	return strings.Trim(strings.Join(lines, "\n"), "\n")
}

// licenseNames returns the SPDX names of a module's licenses. An unknown license fails: a person
// must read it first.
func licenseNames(t *testing.T, root string, files map[string]bool) string {
	var names []string
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if base := path.Base(file); base == "NOTICE" || base == "PATENTS" {
			continue // of a license beside it
		}
		known := len(names)
		for _, l := range []struct{ name, phrase string }{
			{"Apache-2.0", "Apache License"},
			{"BSD-3-Clause", "Neither the name of"},
			{"MIT", "Permission is hereby granted, free of charge"},
		} {
			if strings.Contains(licenseText(t, root, file), l.phrase) {
				names = append(names, l.name)
			}
		}
		require.Greater(t, len(names), known, "%s in %s is a license that is not known here", file, root)
	}
	require.NotEmpty(t, names, "no license in %s", root)
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

func platformNames(list []string) string {
	if len(list) == len(releases) {
		return "all"
	}
	return strings.Join(list, ", ")
}

// writeEmbedded lists the embedded files by origin.
func writeEmbedded(t *testing.T, b *bytes.Buffer, files map[string]bool) {
	used := map[string]bool{}
	for file := range files {
		from := slices.DeleteFunc(slices.Collect(maps.Keys(embedded)), func(start string) bool { return !strings.HasPrefix(file, start) })
		require.Len(t, from, 1, "%s is embedded: from where?", file)
		used[from[0]] = true
	}
	fmt.Fprint(b, "| embedded data | origin |\n|---|---|\n")
	for _, start := range slices.Sorted(maps.Keys(embedded)) {
		require.True(t, used[start], "%s is not embedded", start)
		fmt.Fprintf(b, "| `%s` | %s |\n", start, embedded[start])
	}
	text, err := os.ReadFile("../../internal/input/sample/PROVENANCE.md")
	require.NoError(t, err)
	fmt.Fprint(b, "\n## internal/input/sample/attention.safetensors\n")
	for _, head := range []string{"**What it is.**", "**Source.**", "**Licenses.**", "**Text.**"} {
		_, paragraph, found := strings.Cut(string(unixLines(text)), "\n"+head)
		require.True(t, found, head)
		paragraph, _, _ = strings.Cut(paragraph, "\n\n")
		fmt.Fprintf(b, "\n%s%s\n", head, paragraph)
	}
}

// checkGoLicense checks for make docs that the Go tool has the license in the notices.
func checkGoLicense(t *testing.T, want string) {
	if !*writeDocs {
		return
	}
	out, err := exec.Command("go", "env", "GOROOT").Output()
	require.NoError(t, err)
	require.Equal(t, want, licenseText(t, strings.TrimSpace(string(out)), "LICENSE"))
}
