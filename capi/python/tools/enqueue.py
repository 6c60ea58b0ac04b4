#!/usr/bin/env python3
"""Time calls of small tensors, which cost more than they compute: flashkit beside PyTorch.

    python tools/enqueue.py [--device cuda] [--rounds 60] [--calls 100]

The sides take turns in one process: PyTorch's choice of a backend, and each of its backends that
supports the shape. A number is the least, and the median, of the rounds' mean time of a call in
microseconds. On a GPU, "enqueue" waits for nothing within a round, so that it is the
processor's time alone, as long as the round fits into the GPU's queue. A step is forward and
backward of one call, and the removal of the gradients. On a CPU, set GOMAXPROCS=1 for one thread of
flashkit.
"""

import argparse
import contextlib
import os
import platform
import statistics
import time
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashkit
import flashkit.torch
from flashkit import _compiled

SHAPES = {  # batch, heads, KV heads, rows, keys, head dim
    "cpu": [(1, 1, 1, 1, 1, 64), (1, 4, 4, 16, 16, 64), (1, 12, 12, 16, 16, 64), (1, 32, 8, 1, 512, 128)],
    "cuda": [(1, 8, 8, 64, 64, 64), (1, 32, 8, 1, 4096, 128), (8, 16, 16, 512, 512, 64), (4, 16, 16, 2048, 2048, 128)],
}


BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}


def alone(backend):
    """Return a context in which PyTorch uses one backend, or its choice if backend is None."""
    return contextlib.nullcontext() if backend is None else sdpa_kernel(backend)


@torch.no_grad()
def supported(theirs):
    """Return the sides of PyTorch: its choice, and each backend that computes a call."""
    names = {"PyTorch": None}
    for name, backend in BACKENDS.items():
        with contextlib.suppress(RuntimeError), warnings.catch_warnings(action="ignore"), alone(backend):
            theirs()
            names[f"PyTorch, {name}"] = backend
    return names


def sides(shape, dtype, device):
    """Return, for each pass, calls and backends of PyTorch by side."""
    b, h, g, n, m, d = shape
    q, k, v = (torch.randn(*s, dtype=dtype, device=device) for s in ((b, h, n, d), (b, g, m, d), (b, g, m, d)))
    do, gqa = torch.randn_like(q), h != g
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    theirs = lambda *t: F.scaled_dot_product_attention(*t, enable_gqa=gqa)

    def step(f):
        f(*leaves).backward(do)
        for t in leaves:
            t.grad = None

    ours = {"flashkit.torch": lambda: flashkit.torch.attention(q, k, v), "flashkit.attention": lambda: flashkit.attention(q, k, v)}
    if device == "cpu" and dtype == torch.float32:
        arrays = [t.numpy() for t in (q, k, v)]
        ours["flashkit.attention of NumPy"] = lambda: flashkit.attention(*arrays)
    names = supported(lambda: theirs(q, k, v))
    yield "forward", {name: (f, None) for name, f in ours.items()} | {name: (lambda: theirs(q, k, v), backend) for name, backend in names.items()}
    yield "step", {"flashkit.torch": (lambda: step(flashkit.torch.attention), None)} | {name: (lambda: step(theirs), backend) for name, backend in names.items()}


def measure(functions, rounds, calls, device):
    """Return each function's means of a call by round, in microseconds."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times = {name: [] for name in functions}
    for round in range(-1, rounds):  # round -1 warms up
        for name, (f, backend) in functions.items():
            with alone(backend):
                wait()
                start = time.perf_counter()
                for _ in range(calls):
                    f()
                if round >= 0:
                    times[name].append((time.perf_counter() - start) / calls * 1e6)
    wait()
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--calls", type=int, default=100)
    args = parser.parse_args()
    torch.set_num_threads(1)
    where = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor() or platform.machine()
    flashkit.torch.attention(*(torch.zeros(1, 1, 1, 8, device=args.device) for _ in range(3)))
    print(f"flashkit {flashkit.__version__}, PyTorch {torch.__version__}, NumPy {np.__version__}, Python {platform.python_version()}, {where}, GOMAXPROCS {os.environ.get('GOMAXPROCS', 'not set')}")
    print(f"compiled part: {_compiled._registered}; least and median of {args.rounds} rounds of {args.calls} calls, microseconds\n")
    print("| shape [B, H, G, N, M, D] | type | pass | side | least | median | of PyTorch's least |")
    print("|---|---|---|---|--:|--:|--:|")
    for shape in SHAPES[args.device]:
        for dtype in (torch.float32,) if args.device == "cpu" else (torch.bfloat16, torch.float16):
            for way, functions in sides(shape, dtype, args.device):
                times = measure(functions, args.rounds, args.calls, args.device)
                base = min(times["PyTorch"])
                for name, x in times.items():
                    print(f"| {list(shape)} | {str(dtype).removeprefix('torch.')} | {way} | {name} | {min(x):.1f} | {statistics.median(x):.1f} | {min(x) / base:.2f} |", flush=True)


if __name__ == "__main__":
    main()
