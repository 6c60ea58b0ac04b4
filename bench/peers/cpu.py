"""Time the CPU kernels beside PyTorch and ONNX Runtime, and against the machine's limits.

    make peers
    python bench/peers/cpu.py bin/simd.test --threads 1,2 --seq 1024,4096 --head-dim 64,128
    python bench/peers/cpu.py bin/simd.test --dtype bf16 --kernel amxbf16 --pass fwd
    taskset -c 0,1 python bench/peers/cpu.py bin/simd.test --no-peers

bin/simd.test is the benchmark binary of backends/simd. A peer that is not installed is left out. For each problem
and number of threads the script runs our benchmarks, with the limits measured in the same process, and then the peers,
one after the other, several rounds; it prints medians, fractions of the limit and ratios to the peers. FLOPs count the
true area of the mask, 2.5 times the forward pass for the backward pass. The limit is that of float32, also for bf16:
the multiply-adds that the processor does alone ("of peak"), and those that it does right after each of our calls, at the
clock that it had in the call ("at clock").
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

BATCH, HEADS = 1, 8


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda s: [int(x) for x in s.split(",")]
    parser.add_argument("binary", help="benchmark binary: go test -c ./backends/simd")
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--seq", type=numbers, default=[1024, 4096])
    parser.add_argument("--head-dim", type=numbers, default=[64, 128])
    parser.add_argument("--heads", type=int, default=HEADS)
    parser.add_argument("--pass", dest="passes", default="fwd,bwd", help="fwd, bwd or both (default both)")
    parser.add_argument("--mask", default="none,causal")
    parser.add_argument("--kernel", default="avx512", help="variant of our kernels")
    parser.add_argument("--dtype", default="f32", choices=["f32", "bf16"], help="bf16: ONNX Runtime has none")
    parser.add_argument("--no-peers", action="store_true", help="time ours alone")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each measurement")
    parser.add_argument("--json", help="also write all results to this file")
    return parser.parse_args()


def flops(seq, dim, heads, causal, backward):
    area = seq * (seq + 1) // 2 if causal else seq * seq
    return (2.5 if backward else 1) * 4 * BATCH * heads * area * dim


def ours(args, names, threads):
    """Return {(benchmark, unit): value} of our kernels and the limits."""
    limits = "^BenchmarkLimits$/^fma="
    kernels = f"^BenchmarkFractions$/^simd$/^({'|'.join(f'{p}_{args.kernel}' for p in args.passes.split(','))})$"
    env = dict(os.environ, GOMAXPROCS=str(threads), FLASHKIT_BENCH=",".join(names))
    command = [args.binary, "-test.run", "^$", "-test.bench", limits + "|" + kernels, "-test.benchtime", f"{args.seconds}s"]
    out = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    return {(re.sub(r"-\d+$", "", name), unit): float(value)
            for name, values in re.findall(r"^Benchmark(\S+)\s+\d+\s(.*)", out, re.M)
            for value, unit in re.findall(r"([\d.e+]+) (\S+)", values)}


def timed(call, seconds):
    """Return the median time of a call."""
    call()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def torch_peer(threads, heads, seq, dim, causal, backward, dtype):
    import torch
    from torch.nn.functional import scaled_dot_product_attention as attention

    torch.set_num_threads(threads)
    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    q, k, v, do = (torch.randn(BATCH, heads, seq, dim).to(kind) for _ in range(4))
    if not backward:
        return lambda: attention(q, k, v, is_causal=causal)
    for x in (q, k, v):
        x.requires_grad_()
    o = attention(q, k, v, is_causal=causal)
    return lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True)


def onnx_peer(threads, heads, seq, dim, causal, backward, dtype):
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    if backward or dtype != "f32":
        raise ImportError("has no backward pass, and no bf16")
    shape = [BATCH, seq, heads * dim]
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    node = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["o"], domain="com.microsoft",
                            num_heads=heads, unidirectional=int(causal))
    graph = helper.make_graph([node], "attention", [value(x) for x in "qkv"], [value("o")])
    model = helper.make_model(graph, ir_version=9,
                              opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    inputs = {x: rng.standard_normal(shape, dtype=np.float32) for x in "qkv"}
    return lambda: session.run(None, inputs)


PEERS = {"PyTorch": torch_peer, "ONNX Runtime": onnx_peer}


def main():
    args = arguments()
    results = []
    print(f"{'problem':42} {'pass':4} {'threads':>7} {'ours':>8} {'of peak':>8} {'at clock':>8}" + "".join(f" {p:>14} {'ours/it':>8}" for p in PEERS))
    for threads in args.threads:
        for seq in args.seq:
            for dim in args.head_dim:
                for mask in args.mask.split(","):
                    results += compare(args, threads, seq, dim, mask == "causal")
    if args.json:
        with open(args.json, "w") as f:
            json.dump(results, f, indent=1)


def compare(args, threads, seq, dim, causal):
    heads = args.heads
    name = f"b{BATCH}-h{heads}-g{heads}-n{seq}-m{seq}-d{dim}-{args.dtype}" + "-causal" * causal
    rates, calls = {}, {}
    for p in args.passes.split(","):
        for peer, make in ({} if args.no_peers else PEERS).items():
            try:
                calls[p, peer] = make(threads, heads, seq, dim, causal, p == "bwd", args.dtype)
            except ImportError:
                pass
    for _ in range(args.rounds):
        for benchmark, rate in ours(args, [name], threads).items():
            rates.setdefault(benchmark, []).append(rate)
        for (p, peer), call in calls.items():
            rate = flops(seq, dim, heads, causal, p == "bwd") / timed(call, args.seconds) / 1e9
            rates.setdefault((p, peer), []).append(rate)
    median = {key: statistics.median(x) for key, x in rates.items()}
    rows = []
    for p in args.passes.split(","):
        kernel = f"Fractions/simd/{p}_{args.kernel}/{name}"
        rate, at_clock = median[kernel, "GFLOP/s"], median[kernel, "of-peak"]
        peak = median["Limits/fma=avx2" if args.kernel == "avx2" else "Limits/fma=avx512", "GFLOP/s"]
        row = {"problem": name, "pass": p, "threads": threads, "ours": rate, "peak": peak, "of peak at clock": at_clock}
        line = f"{name:42} {p:4} {threads:7} {rate:8.1f} {rate / peak:8.3f} {at_clock:8.3f}"
        for peer in PEERS:
            if (p, peer) in median:
                row[peer] = median[p, peer]
                line += f" {row[peer]:14.1f} {rate / row[peer]:8.2f}"
            else:
                line += f" {'-':>14} {'-':>8}"
        print(line, flush=True)
        rows.append(row)
    return rows


if __name__ == "__main__":
    sys.exit(main())
