#!/bin/sh
# Measures kernel.wasm against its peers on one core and prints medians and
# ratios: sh run.sh [rounds]. Every round runs every peer once, so that other load
# on the machine affects all peers. Peers whose tools are missing are left out:
#
#	wazero   this backend                        needs Go
#	generic  simd/fwd_generic, plain Go          needs Go
#	native   the same C file, SSE4.2             needs gcc
#	peak     multiplications and additions, SSE  needs gcc
#	v8       the same C file, less unrolled      needs node, clang-14 and lld-14
#	ort      onnxruntime-web, fused attention    needs node, npm and a registry
set -eu
cd "$(dirname "$0")"
rounds=${1:-5}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

have() { command -v "$1" >/dev/null 2>&1; }

go test -c -o "$work/wasm.test" .. && go test -c -o "$work/simd.test" ../../simd
if have gcc; then gcc -O3 -msse4.2 -o "$work/native" native.c -lm; fi
if have clang-14; then CFLAGS=-DUNROLL=1 ../kernel/build.sh "$work/v8.wasm"; fi
cp ./*.mjs "$work"
flashkit=$PWD/../js/flashkit.js
if have npm; then (cd "$work" && npm install --silent --no-audit --no-fund onnxruntime-web@1.30.0 onnx-proto@8.0.1 >/dev/null 2>&1) || true; fi

bench() { # binary pattern
	GOMAXPROCS=1 "$1" -test.run '^$' -test.bench "$2" -test.benchtime 0.5s | awk '/GFLOP/ { for (i = 1; i < NF; i++) if ($(i + 1) == "GFLOP/s") print $i }'
}

for round in $(seq "$rounds"); do
	for d in 64 128; do
		p=b1-h8-g8-n1024-m1024-d$d-f32
		echo "wazero forward $d $(bench "$work/wasm.test" "Kernels/wasm/fwd_simd128/$p\$")"
		echo "wazero backward $d $(bench "$work/wasm.test" "Kernels/wasm/bwd_simd128/$p\$")"
		echo "generic forward $d $(bench "$work/simd.test" "Kernels/simd/fwd_generic/$p\$")"
		for pass in forward backward; do
			if [ -x "$work/native" ]; then echo "native $pass $d $("$work/native" $pass 1024 $d)"; fi
			if [ -x "$work/native" ]; then echo "peak $pass $d $("$work/native" peak)"; fi
			if have node && [ -f "$work/v8.wasm" ]; then echo "v8 $pass $d $(node node.mjs "$flashkit" "$work/v8.wasm" $pass 1024 $d)"; fi
		done
		if [ -d "$work/node_modules/onnxruntime-web" ]; then echo "ort forward $d $(node "$work/ort.mjs" 1024 $d)"; fi
	done
done | tee "$work/all" | sed 's/^/  /' >&2

sort -k1,3 -k4n "$work/all" | awk '
	{ key = $1 " " $2 " " $3; if (key != last) { flush(); n = 0; last = key }; x[++n] = $4 }
	function flush() { if (n) median[last] = x[int((n + 1) / 2)] }
	END {
		flush()
		for (d = 64; d <= 128; d *= 2) for (i = 1; i <= 2; i++) {
			pass = i == 1 ? "forward" : "backward"; mine = median["wazero " pass " " d]
			printf "T 1024 D %d %s: wazero %.2f GFLOP/s", d, pass, mine
			split("generic native v8 ort peak", peers, " ")
			for (k = 1; k <= 5; k++) { other = median[peers[k] " " pass " " d]; if (other) printf ", %s %.2f (ratio %.2f)", peers[k], other, mine / other }
			if (i == 2) printf ", of its forward %.2f", mine / median["wazero forward " d]
			printf "\n"
		}
	}'
