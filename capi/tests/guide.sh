#!/bin/sh
# guide.sh ROOT runs the commands of docs/bindings.md, section C, in order, in one shell. The environment has only variables
# that the guide sets, an empty HOME, PATH, and this machine's folders of Go's caches.
set -eu
root=$1 page=docs/bindings.md
for tool in pkg-config cmake bash; do
	command -v $tool >/dev/null || { echo "$tool is missing: the commands of $page were not run"; exit 0; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
guide=$work/section
awk '/^## / {inside = /^## C$/} inside' "$root/$page" >"$guide"
# The first C program is first.c; the other C code is fragments. Commands are indented.
awk -v to="$work/first.c" '/^```c$/ {n++; inside = 1; next} /^```$/ {inside = 0} inside && n == 1 {print > to}' "$guide"
awk -v to="$work/CMakeLists.txt" '/^```cmake$/ {inside = 1; next} /^```$/ {inside = 0} inside {print > to}' "$guide"
"${CC:-cc}" -std=c11 -Wall -Wextra -Werror -I "$root/capi" -fsyntax-only "$work/first.c"
{
	echo 'set -eu'
	awk -v root="$root" -v work="$work" '/^```/ {fenced = !fenced}
		!fenced && sub(/^    /, "") {print "cd '"'"'" (/^make / ? root : work) "'"'"'"; print}' "$guide"
} >"$work/script"
grep -q '^cc first.c' "$work/script" || { echo "$page compiles nothing" >&2; exit 1; }
env -i HOME="$work" PATH="$PATH" GOCACHE="$(go env GOCACHE)" GOMODCACHE="$(go env GOMODCACHE)" GOFLAGS="$(go env GOFLAGS)" \
	bash "$work/script" >"$work/out" 2>&1 || { cat "$work/out" >&2; exit 1; }
said=$(sed -n 's|.*printf(.*/\* \(.*\) \*/$|\1|p' "$work/first.c")
times=$(grep -cxF "$said" "$work/out" || true)
[ "$times" = 2 ] || { cat "$work/out" >&2; echo "$page: programs built with pkg-config and CMake printed '$said' $times times" >&2; exit 1; }
# A program that requests a newer version, or another major version, finds no package.
for version in 0.99 1; do
	mkdir -p "$work/$version"
	sed "s/flashkit 0.1 /flashkit $version /" "$work/CMakeLists.txt" >"$work/$version/CMakeLists.txt"
	cmake -DCMAKE_PREFIX_PATH="$work/.local" -S "$work/$version" -B "$work/$version/build" >"$work/out" 2>&1 &&
		{ echo "CMake accepted the package as version $version" >&2; exit 1; }
	grep -q 'flashkit-config.cmake, version: 0.1' "$work/out" || { cat "$work/out" >&2; exit 1; }
done
make -s -C "$root" capi-uninstall PREFIX="$work/.local"
rest=$(find "$work/.local" ! -type d)
[ -z "$rest" ] || { echo "make capi-uninstall left $rest" >&2; exit 1; }
echo "$page: $said"
