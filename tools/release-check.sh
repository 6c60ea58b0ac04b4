#!/bin/sh
# Checks a release that tools/release.sh made:
#
#   tools/release-check.sh [FOLDER]     (dist by default)
#
# that the checksums hold, that a second run gives the same ones, that each archive
# holds what it should, for its platform, and that the static program runs where there
# is nothing else: in a container, or in an empty root. An empty root needs root or
# user namespaces. Set GOCACHE to an empty folder to have the second run compile
# everything again.
set -eu
cd "$(dirname "$0")/.."

out=${1:-dist}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
	echo "release-check: $*" >&2
	exit 1
}

# Prints a field of what the Go tool recorded in a program: GOOS, vcs.revision, -tags.
recorded() { # program key
	go version -m "$1" | awk -v key="$2" '$1 == "build" && index($2, key "=") == 1 { print substr($2, length(key) + 2) }'
}

unpack() { # archive
	case $1 in
	*.zip) unzip -q "$1" -d "$work" ;;
	*) tar -C "$work" -xzf "$1" ;;
	esac
}

check_archive() { # archive
	name=$(basename "$1" .tar.gz)
	name=$(basename "$name" .zip)
	unpack "$1"
	for file in LICENSE THIRD_PARTY_NOTICES.md README.md man completions; do
		diff -r "$work/$name/$file" "$(find "$file" "docs/$file" -maxdepth 0 2>/dev/null)" >"$work/diff" ||
			fail "$name: $file is not that of the repository: $(head -n 3 "$work/diff")"
	done
	program=$work/$name/flashrun
	tags=
	case $name in
	*-windows-*) program=$program.exe ;;
	*-static) tags=nocuda ;;
	esac
	platform=$(recorded "$program" GOOS)-$(recorded "$program" GOARCH)${tags:+-static}
	[ "$name" = "flashrun-$version-$platform" ] || fail "$name holds a program for $platform"
	[ "$(recorded "$program" -tags)" = "$tags" ] || fail "$name was built with other tags"
	[ "$(recorded "$program" vcs.revision)" = "$commit" ] || fail "$name is not of commit $commit"
	[ "$(recorded "$program" vcs.modified)" = false ] || fail "$name was built from changed files"
	[ "$(recorded "$program" -trimpath)" = true ] || fail "$name was built without -trimpath"
	echo "release-check: $name"
}

# The static program computes the sample and holds it to the oracle.
run_sample() { # command...
	"$@" --version | tee "$work/version"
	grep -q "^flashrun version $version (commit $commit, go.*, linux/amd64, tags nocuda)$" "$work/version" || fail "it has another version"
	"$@" run --check
	"$@" list >"$work/list"
	grep -q "^ *simd/fwd_generic" "$work/list" || fail "flashrun list names no portable kernel"
}

# Prints the container tool that works here.
container_tool() {
	for tool in podman docker; do
		if "$tool" info >/dev/null 2>&1; then
			echo "$tool"
			return
		fi
	done
}

run_static() {
	[ "$(uname -sm)" = "Linux x86_64" ] || { echo "release-check: the static program is for linux/amd64: not run"; return; }
	tool=$(container_tool)
	if [ -n "$tool" ]; then
		"$tool" build -q -t flashrun-release-check -f Containerfile "$out/static"
		run_sample "$tool" run --rm flashrun-release-check
		"$tool" rmi flashrun-release-check >/dev/null
		return
	fi
	echo "release-check: no container tool: an empty root"
	mkdir "$work/root"
	cp "$out/static/flashrun" "$work/root"
	if [ "$(id -u)" = 0 ]; then
		run_sample env -i PATH="$PATH" chroot --userspec=65534:65534 "$work/root" /flashrun
	else
		run_sample env -i PATH="$PATH" unshare --map-root-user --root="$work/root" /flashrun
	fi
}

(cd "$out" && sha256sum --quiet -c SHA256SUMS)
[ "$(find "$out" -type f | wc -l)" = "$(($(wc -l <"$out/SHA256SUMS") + 1))" ] || fail "$out holds files without a checksum"
tools/release.sh "$work/again"
diff "$out/SHA256SUMS" "$work/again/SHA256SUMS" || fail "a second run gave other bytes"
rm -rf "$work/again"

commit=$(git rev-parse HEAD)
version=$(go version -m "$out/static/flashrun" | awk '$1 == "mod" { print $3 }')
archives=0
for archive in "$out"/flashrun-*; do
	check_archive "$archive"
	archives=$((archives + 1))
done
[ "$archives" = 7 ] || fail "$archives archives, want 7"
run_static
echo "release-check: $version is right"
