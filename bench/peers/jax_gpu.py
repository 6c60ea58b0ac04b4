"""Time JAX's attention on the GPU, for comparison with our kernels on the same problems and the same GPU.

examples:
    python bench/peers/jax_gpu.py
    python bench/peers/jax_gpu.py --seq 4096 --kernel tutorial=my_kernel.py --json jax.json

The shape is that of a tutorial on Pallas: batch 4, 8 heads, head dim 64, bf16, no mask. Peers are JAX's path to cuDNN,
the Pallas attention that JAX brings, and any file given by --kernel that defines attention(q, k, v) on tensors of
[batch, heads, length, head dim]. A peer that fails shows its error. "call" is the time of a call in a loop of calls with
one wait at the end, which is what a program sees; "device" is that of a call in a loop inside of one compiled program,
which leaves out what JAX needs to start one; "cold" is the same where each call comes after as many bytes were written
as no cache holds, less the time of writing them. Ours: the Loop, Graph and Device benchmarks of backends/cuda.
"""

import argparse
import functools
import importlib.util
import json
import os
import statistics
import sys
import time

BATCH, HEADS, DIM = 4, 8, 64
FLUSH = 256 << 20  # size in bytes


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seq", type=lambda s: [int(x) for x in s.split(",")], default=[128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--kernel", action="append", default=[], metavar="NAME=FILE", help="a file that defines attention(q, k, v)")
    parser.add_argument("--calls", type=int, default=200, help="in a loop")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="also write all results to this file")
    return parser.parse_args()


def load(path):
    """Return the function attention that a file defines."""
    spec = importlib.util.spec_from_file_location("kernel", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.attention


def timed(jax, call, calls, rounds):
    """Return the milliseconds per call of a loop of calls, the median of the rounds."""
    jax.block_until_ready(call())
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            result = call()
        jax.block_until_ready(result)
        times.append((time.perf_counter() - start) / calls * 1e3)
    return statistics.median(times)


def repeated(jax, f, calls, flush=False):
    """Return a compiled program that calls f repeatedly, one call after the other, with or without a cache flush in between."""

    def body(_, carry):
        args, results, bytes = carry
        args, bytes, _ = jax.lax.optimization_barrier((args, bytes, results))
        if flush:
            args, bytes = jax.lax.optimization_barrier((args, bytes + 1))
        return args, f(*args), bytes

    @jax.jit
    def many(*args):
        bytes = jax.numpy.zeros(FLUSH if flush else 1, jax.numpy.uint8)
        return jax.lax.fori_loop(1, calls, body, (args, f(*args), bytes))[1:]

    return many


def measure(jax, args, attention, tensors):
    """Return {pass: {"call": ms in a loop of calls, "device": ms in one program, "cold": ms with flushed caches}}."""
    q, k, v, do = tensors
    _, pullback = jax.vjp(attention, q, k, v)
    found = {}
    for name, f, inputs in (("forward", attention, (q, k, v)), ("backward", lambda g, back: back(g), (do, pullback))):
        loop = lambda f, flush=False: timed(jax, functools.partial(repeated(jax, f, args.calls, flush), *inputs), 1, args.rounds) / args.calls
        once = jax.jit(f)
        found[name] = {"call": timed(jax, lambda: once(*inputs), args.calls, args.rounds), "device": loop(f),
                       "cold": loop(f, flush=True) - loop(lambda *_: jax.numpy.zeros(()), flush=True)}
    return found


def main():
    args = arguments()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    if jax.default_backend() != "gpu":
        return "jax_gpu.py: JAX finds no GPU"

    def cudnn(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, implementation="cudnn")

    def pallas(q, k, v):
        from jax.experimental.pallas.ops.gpu.attention import mha
        return mha(q, k, v, segment_ids=None, sm_scale=DIM ** -0.5, causal=False)

    rows = lambda t: (BATCH, t, HEADS, DIM)
    heads = lambda t: (BATCH, HEADS, t, DIM)
    peers = {"cuDNN": (rows, cudnn), "Pallas of JAX": (rows, pallas)}
    for kernel in args.kernel:
        name, path = kernel.split("=", 1)
        peers[name] = heads, load(path)
    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}, {args.rounds} rounds of {args.calls} calls; milliseconds of a call")
    print(f"{'problem':30} {'peer':16} {'pass':8} {'call':>9} {'device':>9} {'cold':>9}")
    results = []
    for seq in args.seq:
        problem = f"b{BATCH}-h{HEADS}-g{HEADS}-n{seq}-m{seq}-d{DIM}-bf16"
        for peer, (shape, attention) in peers.items():
            try:
                tensors = [jax.random.normal(jax.random.key(i), shape(seq), jax.numpy.bfloat16) for i in range(4)]
                found = measure(jax, args, attention, tensors)
            except Exception as e:  # one peer's exception must not end the others
                print(f"{problem:30} {peer:16} failed: {str(e)[:200]}", flush=True)
                continue
            for name, ms in found.items():
                print(f"{problem:30} {peer:16} {name:8} {ms['call']:9.4f} {ms['device']:9.4f} {ms['cold']:9.4f}", flush=True)
                results.append({"problem": problem, "peer": peer, "pass": name, **ms})
    if args.json:
        with open(args.json, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    sys.exit(main())
