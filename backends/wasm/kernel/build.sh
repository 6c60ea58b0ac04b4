#!/bin/sh
# Builds kernel.wasm from kernel.c and its headers. With RELAXED=1 it builds relaxed.wasm, which
# uses the multiply-add instructions of relaxed SIMD. The first argument, if given, is the path of
# the output. The compiler is pinned: another version makes other bytes, and clang 19 cannot
# compile PIN.
#
# Compiling and linking are separate commands. In one command, clang would run an installed
# wasm-opt after linking, which changes the bytes and the order of instructions.
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
# Because of inline assembly, the linker adds a table with one empty slot, in a section before
# all code. Nothing refers to the table, so the next command removes the section.
perl -0777 -pi -e 's/\x04\x05\x01\x70\x01\x01\x01// or die "no table section to drop\n"' "$out"
if [ -n "$relaxed" ]; then
	# clang 14 encodes the instruction with an older opcode of the same length; the next command
	# replaces it. If other data had the same bytes, the count of replacements would be wrong.
	count=$(compile -S -o - | grep -c 'f32x4\.fma') perl -0777 -pi -e \
		'my $n = s/\xfd\xaf\x01/\xfd\x85\x02/g; die "$n patterns of $ENV{count} instructions\n" if $n != $ENV{count}' "$out"
fi
chmod 644 "$out"
