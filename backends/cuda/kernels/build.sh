#!/usr/bin/env bash
# Compiles every .cu file of this folder to a compressed archive in ../images: a cubin
# for each architecture, and PTX for later architectures. The PTX targets an architecture
# with 99 KB of shared memory per block, because some later architectures have no more.
#
# Prints the registers and the spilled bytes of each kernel. Fails if ptxas warns that it
# serialized wgmma instructions, or if a kernel spills more bytes than its limit below. The
# limits are not 0, because with fewer registers another block may fit on a multiprocessor.
# Usage: build.sh path/to/nvcc
set -euo pipefail
nvcc="setarch -R $1" # without address randomization, under which the compiler's output varies from run to run
cd "$(dirname "$0")"

ARCHES="80 86 89 90"
FLAGS="-O3 -std=c++17"
MOST_SPILLED=600 # bytes of spill stores and loads together; fwd_sm80 with features at head dim 64 has the most, on 8.0
MOST_FEATURED=3000 # for bwd_f32 with features, whose gradient sums fill most registers
MOST_STAYING=112 # for bwd_sm90 whose blocks loop over tiles of keys: values of the lane that fetches
MOST_FETCHED=1500 # for fwd_sm90 and bwd_sm90 with features: values of the warp that fetches tiles, and values reloaded once per tile, such as the first dropout counter

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

compile() { # file arch
	local arch=${2%a}
	mkdir -p "$work/$1"
	if [ "$2" = ptx ]; then
		$nvcc $FLAGS -arch=compute_89 -ptx -o "$work/$1/ptx" "$1.cu" || exit 255
		sed -Ei 's@[ \t]*//.*$@@; s@^[ \t]+@@; s@[ \t]+@ @g; s@, @,@g; /^$/d' "$work/$1/ptx" # no comments and spaces: smaller images
	else
		$nvcc $FLAGS -gencode="arch=compute_$2,code=sm_$2" -cubin -Xptxas -v -o "$work/$1/sm_$arch.cubin" "$1.cu" 2>"$work/$1.sm_$arch.log" || { cat "$work/$1.sm_$arch.log" >&2; exit 255; }
	fi
}
export -f compile
export nvcc FLAGS work

for f in *.cu; do
	case $f in
	*_sm90.cu | *_sm90_*.cu) echo "${f%.cu} 90a" ;; # only this architecture has wgmma
	decode_int8.cu | layers.cu) for a in ptx 80 90; do echo "${f%.cu} $a"; done ;; # 8.6 and 8.9 run the cubin of 8.0
	*) for a in ptx $ARCHES; do echo "${f%.cu} $a"; done ;;
	esac
done | xargs -P "$(nproc)" -L 1 bash -c 'compile "$@"' _

for log in "$work"/*.log; do
	awk -v file="$(basename "$log" .log)" -v most="$MOST_SPILLED" -v featured="$MOST_FEATURED" -v fetched="$MOST_FETCHED" -v staying="$MOST_STAYING" '
		/Compiling entry function/ { split($0, q, "\x27"); name = q[2] }
		/bytes stack frame/ { spill = $(NF-7) + $(NF-3) }
		/Used [0-9]+ registers/ {
			match($0, /Used [0-9]+/); printf "%-22s %-28s %4d registers %6d bytes spilled\n", file, name, substr($0, RSTART + 5, RLENGTH - 5), spill
			if (spill > (name ~ /^(fwd|bwd)_sm90_features/ ? fetched : name ~ /^bwd_sm90_(up_|columns80_|columns96_)?(bf16|f16)_d(64|128)$/ ? staying : name ~ /_sm90_/ ? 0 : name ~ /^bwd_f32_features_d/ ? featured : most)) bad = 1 # wgmma waits for spilled registers
		}
		/C75(1[0-9])/ { print; bad = 1 }
		END { exit bad }' "$log" || failed=yes
done
[ -z "${failed:-}" ] || { echo "a kernel spills too much, or its matrix instructions are serialized" >&2; exit 1; }

rm -rf ../images
mkdir ../images
for f in *.cu; do # the newest architecture first, PTX last: readImage takes the first that fits
	f=${f%.cu}
	tar -C "$work/$f" --format=ustar --owner=0 --group=0 --numeric-owner --mtime=@0 --mode=644 -cf "$work/$f.tar" $(LC_ALL=C ls -r "$work/$f")
	zstd -q --ultra -20 "$work/$f.tar" -o "../images/$f.tar.zst"
done
{
	echo "compiler $($nvcc --version | grep -o 'V[0-9][0-9.]*')"
	echo "flags $FLAGS"
	sha256sum ./*.cu ./*.cuh build.sh ../images/*.zst
} >images.sum
du -sh ../images
