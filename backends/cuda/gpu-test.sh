#!/usr/bin/env bash
# Tests the CUDA backend on a machine with an NVIDIA GPU, which needs neither Go nor
# a checkout: make gpu-test puts this file, the test binary and flashrun into one
# folder. Usage: gpu-test.sh [conformance] [repeats] [sanitizer] [peers]; all of
# them by default. compute-sanitizer and PyTorch are used where they are.
set -euo pipefail
cd "$(dirname "$0")"
steps=${*:-conformance repeats sanitizer peers}
failed=

step() {
	echo "--- $*"
	local start=$SECONDS
	"$@" || failed="$failed $1"
	echo "    $((SECONDS - start)) s"
}

conformance() {
	./flashrun conformance --backend cuda | tail -n 8
	FLASHKIT_REQUIRE=cuda/fwd_sm80 ./cuda.test -test.run 'TestPoisoned|TestFast|TestLarge|TestGraph|TestDeviceFull|TestEvery|TestGPUAllocations|TestManyHostCalls'
}

repeats() { FLASHKIT_REQUIRE=cuda/fwd_sm80 ./cuda.test -test.run TestRepeats; }

# One shape of the grid, every trap and every instance: the tools slow kernels
# down a hundredfold.
sanitizer() {
	command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer here"; return 0; }
	local tool
	for tool in memcheck racecheck initcheck synccheck; do
		echo "$tool: $(FLASHKIT_SWEEP=1 FLASHKIT_REPEATS=1 compute-sanitizer --tool $tool --error-exitcode 9 \
			./cuda.test -test.short -test.run 'TestEvery|TestRepeats|TestConformance/.*/(_|b4-h5-g5-n31-)' \
			-test.skip 'concurrent_calls|invalid_arguments' 2>&1 | tee "$tool.log" | grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|^FAIL' | tr '\n' ' ')"
	done
	! grep -LE 'ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards' ./*check.log
}

peers() { python3 gpu.py ./cuda.test; }

for s in $steps; do step "$s"; done
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
