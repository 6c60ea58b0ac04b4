#!/bin/sh
# Checks a release that tools/release.sh made:
#
#   tools/release-check.sh [FOLDER]     (dist by default)
#
# The checksums must match the files, and a second run must give the same checksums.
# Each archive must hold the right files and a program for its platform, the npm
# package the files of backends/wasm/js/package.sh, and the archive of the golden
# vectors the repository's files in less than 8 MB. The static program must run without
# any other file: in a container if podman, docker or buildah works here, else in an
# empty root folder, which needs root or user namespaces. If GOCACHE is an empty
# folder, the second run compiles everything again.
set -eu
cd "$(dirname "$0")/.."

out=${1:-dist}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
	echo "release-check: $*" >&2
	exit 1
}

# Prints a setting that the Go tool recorded in a program, such as GOOS, vcs.revision or -tags.
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
	go version -m "$program" | awk '$1 == "dep" { print "pkg:golang/" $2 "@" $3 }' | while read -r part; do
		grep -qF "\"$part\"" "$out/flashrun-$version.cdx.json" || fail "$name holds $part, which the bill of materials lacks"
	done
	echo "release-check: $name"
}

check_npm() { # archive
	backends/wasm/js/package.sh "$work/files" "${version#v}"
	tar -C "$work" -xzf "$1"
	diff -r "$work/files" "$work/package" || fail "$1 does not hold the files of the npm package"
	grep -q "\"version\": \"${version#v}\"" "$work/package/package.json" || fail "$1 has another version"
	echo "release-check: flashkit for npm"
}

check_vectors() { # archive
	name=$(basename "$1" .tar.gz)
	[ "$(wc -c <"$1")" -lt 8000000 ] || fail "$name has 8 MB or more"
	unpack "$1"
	for folder in vectors testdata; do
		git ls-files "conformance/$folder" | while read -r file; do
			cmp "$file" "$work/$name/${file#conformance/}" || fail "$name: $file is not that of the repository"
		done
	done
	echo "release-check: $name"
}

# Runs the static program by a command. The program computes the sample and compares it with the oracle.
run_sample() { # command...
	"$@" --version | tee "$work/version"
	grep -q "^flashrun version $version (commit $commit, go.*, linux/amd64, tags nocuda)$" "$work/version" || fail "it has another version"
	"$@" run --check
	"$@" list >"$work/list"
	grep -q "^ *simd/fwd_generic" "$work/list" || fail "flashrun list names no portable kernel"
}

# Runs the static program in a container of the tool, or in an empty root folder.
run_in() { # tool argument...
	tool=$1
	shift
	case $tool in
	buildah) buildah run --isolation chroot flashrun-release-check -- /flashrun "$@" ;;
	chroot) env -i PATH="$PATH" chroot --userspec=65534:65534 "$work/root" /flashrun "$@" ;;
	unshare) env -i PATH="$PATH" unshare --map-root-user --root="$work/root" /flashrun "$@" ;;
	*) "$tool" run --rm flashrun-release-check "$@" ;;
	esac
}

# Makes the container or root folder for run_in. It fails if the tool is missing or not permitted.
prepare() { # tool
	case $1 in
	chroot) [ "$(id -u)" = 0 ] && mkdir "$work/root" && cp "$out/static/flashrun" "$work/root" ;;
	unshare) mkdir -p "$work/root" && cp "$out/static/flashrun" "$work/root" ;;
	*)
		command -v "$1" && "$1" build -q -t flashrun-release-check -f Containerfile "$out/static" &&
			{ [ "$1" != buildah ] || buildah from --name flashrun-release-check localhost/flashrun-release-check; }
		;;
	esac
}

clean_up() { # tool
	case $1 in
	chroot | unshare) return ;;
	buildah) buildah rm flashrun-release-check ;;
	esac
	"$1" rmi flashrun-release-check
}

run_static() {
	[ "$(uname -sm)" = "Linux x86_64" ] || { echo "release-check: the static program is for linux/amd64: not run"; return; }
	for tool in podman docker buildah chroot unshare; do
		if prepare "$tool" >/dev/null 2>&1 && run_in "$tool" --version >/dev/null 2>&1; then
			echo "release-check: the static program runs by $tool"
			run_sample run_in "$tool"
			clean_up "$tool" >/dev/null
			return
		fi
		clean_up "$tool" >/dev/null 2>&1 || true
	done
	fail "the static program runs neither in a container nor in an empty root"
}

(cd "$out" && sha256sum --quiet -c SHA256SUMS)
[ "$(find "$out" -type f | wc -l)" = "$(($(wc -l <"$out/SHA256SUMS") + 1))" ] || fail "$out holds files without a checksum"
tools/release.sh "$work/again"
diff "$out/SHA256SUMS" "$work/again/SHA256SUMS" || fail "a second run gave other bytes"
rm -rf "$work/again"

commit=$(git rev-parse HEAD)
version=$(go version -m "$out/static/flashrun" | awk '$1 == "mod" { print $3 }')
archives=0
for archive in "$out"/flashrun-*.tar.gz "$out"/flashrun-*.zip; do
	check_archive "$archive"
	archives=$((archives + 1))
done
[ "$archives" = 7 ] || fail "$archives archives, want 7"
check_npm "$out/flashkit-${version#v}.tgz"
check_vectors "$out/flashkit-vectors-$version.tar.gz"
run_static
echo "release-check: $version is right"
