#!/bin/sh
# Compiles and runs the programs of a guide against an installed library: PREFIX GUIDE.
set -eu
prefix=$1 guide=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
awk -v to="$work" '/^```c$/ {n++; inside = 1; next} /^```$/ {inside = 0} inside {print > (to "/" n ".c")}' "$guide"
flags="-I$prefix/include -L$prefix/lib -lflashkit"
if command -v pkg-config >/dev/null; then
	flags=$(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs flashkit)
fi
ran=0
for f in "$work"/*.c; do
	grep -q 'int main' "$f" || continue # a fragment
	"${CC:-cc}" -std=c11 -Wall -Wextra -Werror "$f" $flags -o "$work/program"
	LD_LIBRARY_PATH=$prefix/lib "$work/program"
	ran=$((ran + 1))
done
[ "$ran" -gt 0 ] || { echo "$guide has no program" >&2; exit 1; }
