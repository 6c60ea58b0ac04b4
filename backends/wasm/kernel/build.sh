#!/bin/sh
# Builds kernel.wasm from kernel.c and the headers beside it, or to the path given, and with
# RELAXED=1 relaxed.wasm, which multiplies and adds by the instructions of relaxed SIMD. The
# compiler is pinned: another version makes other bytes, and 19 cannot compile PIN.
#
# Two commands on purpose: in one, clang runs whatever wasm-opt it finds after
# linking, which changes the bytes and undoes the order of instructions.
set -eu
cd "$(dirname "$0")"
name=${RELAXED:+relaxed}
relaxed=${RELAXED:+-mrelaxed-simd -DRELAXED}
out=${1:-${name:-kernel}.wasm}
object=$(mktemp)
trap 'rm -f "$object"' EXIT
compile() {
	clang-14 --target=wasm32 -O3 -std=c11 -Wall -Wextra -Werror -ffreestanding -fno-builtin -fno-ident \
		-fno-unroll-loops -fno-vectorize -fno-slp-vectorize \
		-msimd128 -mbulk-memory -mnontrapping-fptoint -msign-ext -mmutable-globals \
		$relaxed ${CFLAGS-} kernel.c "$@"
}
compile -c -o "$object"
# The stack comes first, so that an overflow leaves the memory and traps.
wasm-ld-14 --no-entry --strip-all --stack-first -z stack-size=32768 \
	--max-memory=4294901760 --export=__heap_base "$object" -o "$out"
# For the sake of inline assembly the linker adds a table of one empty slot, in a
# section before all code. Nothing refers to it.
perl -0777 -pi -e 's/\x04\x05\x01\x70\x01\x01\x01// or die "no table section to drop\n"' "$out"
if [ -n "$relaxed" ]; then
	# This clang knows the instruction by an older number, of as many bytes. Whatever else
	# had those bytes would change, too: then the count differs.
	count=$(compile -S -o - | grep -c 'f32x4\.fma') perl -0777 -pi -e \
		'my $n = s/\xfd\xaf\x01/\xfd\x85\x02/g; die "$n patterns of $ENV{count} instructions\n" if $n != $ENV{count}' "$out"
fi
chmod 644 "$out"
