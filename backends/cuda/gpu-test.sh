#!/usr/bin/env bash
# Tests the CUDA backend on a machine with an NVIDIA GPU, which needs neither Go nor
# a checkout: make gpu-test puts this file, the test binary and flashrun into one
# folder. Usage: gpu-test.sh [conformance] [sweep] [repeats] [sanitizer] [choice] [peers]
# [groups] [masks] [features] [jax] [regret] [ring]; all by default. compute-sanitizer, PyTorch and JAX are used if
# there, and for groups the package flashkit with its library.
set -euo pipefail
cd "$(dirname "$0")"
steps=${*:-conformance sweep repeats sanitizer choice peers groups masks features jax regret ring}
failed=

step() {
	echo "--- $*"
	local start=$SECONDS
	"$@" || failed="$failed $1"
	echo "    $((SECONDS - start)) s"
}

conformance() {
	./flashrun conformance --backend cuda --quick | tail -n 8
	FLASHKIT_REQUIRE=cuda/fwd_sm80 ./cuda.test -test.run 'TestNumbers|TestPoisoned|TestFewMulti|TestFast|TestLarge|TestGaps|TestGraph|TestDeviceFull|TestEvery|TestGPUAllocations|TestManyHostCalls'
}

sweep() { ./flashrun conformance --backend cuda --case 'sweep*' --sweep "${SWEEP:-1000}" --seed "${SEED:-1}" | tail -n 8; }

# FLASHKIT_REPEATS of them, of some kernels beside each other: most of the time is the processor's.
repeats() {
	local x bad=
	rm -rf repeats
	mkdir repeats
	for x in TestRepeats TestFeaturedRepeats.*/.*/^{fwd_sm90,fwd_sm80,bwd_sm90,bwd_sm80,decode_sm80,.*f32}$; do
		FLASHKIT_REQUIRE=cuda/fwd_sm80 ./cuda.test -test.v -test.run "$x" >"repeats/${x//[^a-zA-Z0-9_]/}.log" 2>&1 &
	done
	wait
	for x in repeats/*.log; do
		tail -n 1 "$x" | grep -q '^PASS' || bad="$bad $x"
	done
	echo "$(cat repeats/*.log | grep -c -- '--- PASS: .*/.*/') problems gave the same bits"
	[ -z "$bad" ] || { grep -hE -- '--- FAIL|panic|differs|output' $bad; return 1; }
}

# Every instance, plain and with each feature, and for the quick tools also traps and one
# shape of the grid: in parts, as many beside each other as there are processors, since the
# tools use those more than the GPU. A line says how each part ended. initcheck does not see
# that bulk copies initialize what bwd_sm90 has them store to dq_sum, so the kernels that read
# it are left out: TestPoisoned fills it with NaN instead. And it takes memory for new when
# cuMemAllocAsync is called, not when the stream gets there: kernels of another stream, which
# had that memory before, may still run, so launches wait for their end. racecheck takes a
# bulk copy to shared memory, there LSE and delta, for a write by the thread that asks for it,
# which nothing orders; in truth the barrier does that the copy arrives at: bulk copies are
# left out.
sanitizer() {
	command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer here"; return 0; }
	rm -rf sanitizer
	mkdir sanitizer
	export -f check
	sanitizer_parts | xargs -P "$(nproc)" -L 1 bash -c 'check "$@"' check
	echo "$(ls sanitizer/*.ok 2>/dev/null | wc -l) parts of $(sanitizer_parts | wc -l) without a finding"
	local bad
	bad=$(for log in sanitizer/*.log; do [ -e "${log%log}ok" ] || echo "$log"; done)
	[ -z "$bad" ] || { grep -m 24 -E '^(=========|--- FAIL|FAIL|panic)' $bad; return 1; }
}

# The parts, the longest first: a tool, a test, the kernel's file and a name.
sanitizer_parts() {
	local tool x dtype dtypes='bf16 f16' all='bwd_f32 fwd_f32 bwd_sm80 fwd_sm80 bwd_sm90 decode_sm80 fwd_sm90'
	for x in $all; do
		dtypes_of "$x"
		for dtype in $dtypes; do
			echo "racecheck TestEveryFeaturedInstance/^$x\$/^$dtype-d(192|256|320|512) $x features-$x-$dtype-wide"
			echo "racecheck TestEveryFeaturedInstance/^$x\$/^$dtype-d(32|64|96|128) $x features-$x-$dtype"
		done
	done
	all="$all fwd_sm90_short fwd_sm90_wide" # take no features
	for x in $all; do
		for tool in initcheck memcheck synccheck; do
			dtypes_of "$x"
			dtype=${dtypes%% *}
			[ "$dtype" = f32 ] && dtype= || dtype=-$dtype # f32 has no suffix
			echo "$tool TestEvery.*Instance/^$x\$ $x instances-$x"
			echo "$tool ^TestConformance\$/^$x\$/^([a-z0-9_]+$dtype|sweep-.*|b4-h5-g5-n31-.*)\$ $x cases-$x"
		done
	done
	for x in $all; do echo "racecheck TestEveryInstance/^$x\$ $x plain-$x"; done
	for tool in initcheck memcheck synccheck racecheck; do echo "$tool TestEveryLimit fwd_sm80 limits"; done
}

dtypes_of() {
	case $1 in *_f32) dtypes=f32 ;; decode*) dtypes='bf16 f16 f32' ;; *) dtypes='bf16 f16' ;; esac
}

# check runs a part: check tool test kernel name
check() {
	local options='' start=$SECONDS log=sanitizer/$1-$4 found=ended
	[ "$1" != racecheck ] || options='--check-bulk-copy no'
	[ "$1" != initcheck ] || export CUDA_LAUNCH_BLOCKING=1 options='--kernel-name-exclude kns=bwd_sm90_finish --kernel-name-exclude kns=bwd_sm90_features_finish'
	if FLASHKIT_REQUIRE=cuda/$3 FLASHKIT_SWEEP=1 timeout -k 5 "${LIMIT:-240}" compute-sanitizer --tool "$1" $options --error-exitcode 9 \
		./cuda.test -test.short -test.v -test.run "$2" >"$log.log" 2>&1; then
		grep -qE 'ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards' "$log.log" && ! grep -q 'no tests to run' "$log.log" && touch "$log.ok"
	else
		[ $? -lt 124 ] || found='not ended'
	fi
	[ -e "$log.ok" ] && found='no finding' || found="FINDING or $found"
	echo "$1 $4: $((SECONDS - start)) s, $(grep -c -- '--- PASS' "$log.log") passed, $found"
}

# The problems of the FlashAttention papers: 16384 tokens, hidden size 2048; half of
# both in float32; and decode.
problems() {
	local t d
	for t in 1024 2048 4096 8192 16384; do
		for d in 64 128 256; do
			echo "b$((16384 / t))-h$((2048 / d))-g$((2048 / d))-n$t-m$t-d$d-bf16"
			echo "b$((16384 / t))-h$((2048 / d))-g$((2048 / d))-n$t-m$t-d$d-bf16-causal"
		done
	done
	for t in 512 1024 2048 4096; do
		for d in 64 128; do echo "b$((8192 / t))-h$((1024 / d))-g$((1024 / d))-n$t-m$t-d$d-f32-causal"; done
	done
	for t in 8192 65536 131072; do echo "b1-h32-g8-n1-m$t-d128-bf16"; done
	echo b16-h32-g8-n1-m131072-d128-bf16
}

# Shapes that no kernel was tuned for, drawn by a seed: grouped heads, short sequences,
# cross attention, few blocks, decode.
drawn() {
	local seed=${SEED:-$RANDOM}
	echo "problems drawn by SEED=$seed" >&2
	awk -v seed="$seed" 'function whole(least, most) { return int(least * exp(rand() * log(most / least))) }
		function name(b, h, g, n, m) { printf "b%d-h%d-g%d-n%d-m%d-d%d-bf16%s\n", b, h, g, n, m, 64 * 2 ^ int(3 * rand()), rand() < 0.5 ? "-causal" : "" }
		BEGIN {
			srand(seed)
			for (i = 0; i < 3; i++) {
				n = whole(512, 8192); name(whole(1, 8), 32, 2 ^ int(5 * rand()), n, n)
				n = whole(32, 512); name(whole(16, 128), 16, 16, n, n)
				name(whole(1, 8), 16, 16, whole(256, 4096), whole(32, 2048))
				n = whole(256, 2048); name(1, 8, 8, n, n)
				name(whole(1, 32), 32, 2 ^ int(4 * rand()), whole(1, 8), whole(512, 16384))
			}
		}'
}

# How good the choice among the kernels is: on random problems, the time of the chosen one
# over that of the fastest. FLASHKIT_SEED and FLASHKIT_PROBLEMS change them; with
# FLASHKIT_FEATURES most have features. choice.log keeps all times, for TestFitCosts.
choice() {
	./cuda.test -test.run '^$' -test.bench Choice -test.benchtime 1x | tee -a choice.log | grep -E ' regret | FAIL|^PASS'
	FLASHKIT_FEATURES=1 ./cuda.test -test.run '^$' -test.bench BenchmarkChoice -test.benchtime 1x | tee -a choice.log | grep -E ' regret | FAIL|^PASS'
}

# What each feature costs beside the same kernel without, and decode over pages beside contiguous keys.
features() { ./cuda.test -test.run '^$' -test.bench 'Features|Paged' -test.benchtime 1x | grep -E 'plain|pages'; }

peers() {
	./cuda.test -test.run '^$' -test.bench 'Host|FirstCall' -test.benchtime 1x
	FLASHKIT_BENCH=$(problems; drawn) python3 gpu.py --peers "${PEERS:-default,flash,cudnn,efficient}" --rounds "${ROUNDS:-3}" --json gpu.json -- \
		./cuda.test -test.run '^$' -test.bench 'Device|SmallCalls' -test.benchtime 1x
}

# What a user gets, in groups of shapes, beside all peers, values compared.
groups() {
	python3 -c 'import flashkit' 2>/dev/null || { echo "no package flashkit here"; return 0; }
	python3 gpu.py --groups "${SHAPES:-all}" --random 20 --seed "${SEED:-1}" --json groups.json
}

# What masks and shapes cost beside the same kernel without.
masks() {
	FLASHKIT_BENCH=$(shapes) ./cuda.test -test.run '^$' -test.bench 'Device/^fwd_sm90$' -test.benchtime 1x | grep TFLOP
}

shapes() {
	local d h kv mask
	for d in 64 128 256; do
		h=$((2048 / d))
		for mask in '' -causal -window1024.0; do
			for kv in $h $((h / 4)); do echo "b4-h$h-g$kv-n4096-m4096-d$d-bf16$mask"; done
		done
		echo "b4-h$h-g$h-n4000-m4100-d$d-bf16 b4-h$h-g$h-n1024-m16384-d$d-bf16 b16-h$h-g$h-n4096-m1024-d$d-bf16"
		echo "b16-h$h-g$h-n1024-m1024-d$d-bf16 b14-h$h-g$h-n1152-m1152-d$d-bf16" # rows that see as many keys as in the window
	done
}

# The shape of a tutorial on Pallas, whose kernel is in the file named by PALLAS.
jax() {
	FLASHKIT_BENCH=$(for t in 128 256 512 1024 2048 4096; do echo b4-h8-g8-n$t-m$t-d64-bf16; done) \
		./cuda.test -test.run '^$' -test.bench 'Loop|Graph|Device/.*sm90' -test.benchtime 1x
	python3 -c 'import jax' 2>/dev/null || { echo "no JAX here"; return 0; }
	python3 jax_gpu.py ${PALLAS:+--kernel "tutorial=$PALLAS"} --json jax.json
}

# How good dispatch's choices between the processor and the GPU are.
regret() {
	FLASHKIT_PROFILE=machine.profile ./flashrun calibrate
	FLASHKIT_PROFILE=machine.profile ./regret | tail -n 12
}

# One sequence over all GPUs: faults, values, times and PyTorch's context parallel, in ring.json within
# RING_SECONDS, then as a table. On one GPU, ranks share it.
ring() {
	[ "$(nvidia-smi -L | wc -l)" -gt 1 ] || { ./peer.test; return; }
	local status=0
	rm -f ring.json
	python3 gpu_ring.py --json ring.json --seconds "${RING_SECONDS:-300}" || status=1
	python3 gpu_ring.py --table ring.json
	return $status
}

for s in $steps; do step "$s"; done
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
