#!/bin/sh
# Builds a release of flashrun from the commit that is checked out:
#
#   tools/release.sh [FOLDER]     (dist by default; it is replaced)
#
# FOLDER gets an archive for each platform, static/ with a static linux/amd64
# program without CUDA (Containerfile copies this folder), a bill of materials of
# all programs (CycloneDX), the npm package flashkit, the golden vectors with
# their judge, and SHA256SUMS.
#
# The script builds in a clone, so the release has no uncommitted changes. Two runs
# give the same bytes: the Go tool leaves out paths, and archives hold sorted names,
# no owners, and the commit's time. The script needs git, go, GNU tar, gzip, zip,
# sha256sum and, for modules that are not in the module cache, a module proxy.
set -eu
cd "$(dirname "$0")/.."

PLATFORMS="linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64"

out=${1:-dist}
case $out in /*) ;; *) out=$PWD/$out ;; esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The caller's settings must not change the bytes.
export GOFLAGS= GOEXPERIMENT= GOAMD64=v1 GOARM64=v8.0 CGO_ENABLED=0 TZ=UTC LC_ALL=C
umask 022

[ -z "$(git status --porcelain)" ] || echo "release: what is not committed is left out" >&2
commit=$(git rev-parse HEAD)
git clone --quiet --no-hardlinks --no-checkout . "$work/src"
cd "$work/src"
git checkout --quiet --detach "$commit"
mtime=$(git log -1 --format=%ct)
license="LICENSE THIRD_PARTY_NOTICES.md"

build() { # platform program flags...
	platform=$1 program=$2
	shift 2
	GOOS=${platform%/*} GOARCH=${platform#*/} go build -buildvcs=true -trimpath -ldflags '-s -w' "$@" -o "$program" ./cmd/flashrun
}

# Prints the sorted names of all files in the folder $1, relative to $work, as in archives.
names() {
	(cd "$work" && find "$1" | sort)
}

# Packs the folder $1 of $work: as zip for Windows, as tar.gz for other platforms, or as the file $2.
pack() {
	find "$work/$1" -exec touch -h -d "@$mtime" {} +
	case $1 in
	*-windows-*) names "$1" | (cd "$work" && zip -q -X -9 -@ "$work/dist/$1.zip") ;;
	*) names "$1" | tar -C "$work" --format=ustar --no-recursion --owner=0 --group=0 --numeric-owner -cf - -T - |
		gzip -9 -n >"$work/dist/${2:-$1.tar.gz}" ;;
	esac
}

mkdir "$work/dist"
build linux/amd64 "$work/dist/static/flashrun" -tags nocuda
# shellcheck disable=SC2086 # two names
cp $license "$work/dist/static"
version=$(go version -m "$work/dist/static/flashrun" | awk '$1 == "mod" { print $3 }')
case $version in
v*) ;;
*) echo "release: the Go tool gave the version \"$version\"" >&2; exit 1 ;;
esac

for platform in $PLATFORMS linux/amd64/static; do
	name=flashrun-$version-$(echo "$platform" | tr / -)
	echo "release: $name"
	mkdir "$work/$name"
	# shellcheck disable=SC2086 # several names
	cp -R $license README.md docs/man docs/completions "$work/$name"
	case $platform in
	*/static) cp "$work/dist/static/flashrun" "$work/$name" ;;
	windows/*) build "$platform" "$work/$name/flashrun.exe" ;;
	*) build "$platform" "$work/$name/flashrun" ;;
	esac
	pack "$name"
done
backends/wasm/js/package.sh "$work/package" "${version#v}"
pack package "flashkit-${version#v}.tgz"
vectors=flashkit-vectors-$version
mkdir "$work/$vectors"
cp -R LICENSE conformance/vectors conformance/testdata "$work/$vectors"
pack "$vectors"
GOOS= GOARCH= go run ./internal/house/sbom "$(TZ=UTC date -d "@$mtime" +%Y-%m-%dT%H:%M:%SZ)" "$work"/flashrun-*/flashrun* >"$work/dist/flashrun-$version.cdx.json"
(cd "$work/dist" && sha256sum flashkit-* flashrun-* static/* >SHA256SUMS)

rm -rf "$out"
mv "$work/dist" "$out"
chmod 755 "$out"
