#!/usr/bin/env python3
"""Counts the instructions a multiply-add of the NEON products of matrices takes, on one thread, and of attention in bf16.

    python3 tools/arm64/products.py

It needs qemu-user (the static one has no plugins) and a C compiler. A product's count is the difference
between a program that computes it some times more and one that does not, both warm. The weights are packed before.
"""

import json
import os
import pathlib
import random
import struct
import tempfile

from counts import PREFILL, ROOT, multiply_adds, of_a_call, run

SHAPES = [(m, k, n) for k, n in ((384, 1536), (768, 768)) for m in (1, 8, 32, 128)]
PRECISIONS = ("f32", "bf16 weights", "bf16", "int8")


def counted(tools, file, shape, precision, times):
    """Returns the instructions of a program that computes a product so many times."""
    m, k, n = shape
    requests = [{"op": "open", "file": str(file), "m": m, "k": k, "n": n, "precision": precision}, {"op": "run", "bias": True, "times": times}]
    done = run("qemu-aarch64", "-plugin", f"{tools / 'count.so'},only=", "-d", "plugin", tools / "product", input="\n".join(map(json.dumps, requests)),
               capture_output=True, text=True, env=dict(os.environ, GOMAXPROCS="1", GOGC="off"))
    if "error" in done.stdout:
        raise SystemExit(done.stdout)
    return int(done.stderr.split("instructions: ")[1].split(",")[0])


def attention(tools):
    """Prints the instructions of attention in bf16, with products of it and widened."""
    run("go", "build", "-o", tools / "instructions", "./bench/peers/instructions", cwd=ROOT, env=dict(os.environ, CGO_ENABLED="0", GOARCH="arm64"))
    kernels = ("fwd_neonbf16", "fwd_neon")
    print("\n| N | M | D | mask | " + " | ".join(kernels) + " |\n|--:|--:|--:|---|" + "--:|" * len(kernels))
    for n, m, d, heads, mask in PREFILL:
        name = f"b1-h{heads}-g{heads}-n{n}-m{m}-d{d}-bf16" + ("-causal" if mask == "causal" else "")
        each = [of_a_call(tools / "count.so", tools / "instructions", f"simd/{k}", name) / multiply_adds(n, m, d, heads, mask) for k in kernels]
        print(f"| {n} | {m} | {d} | {mask} | " + " | ".join(f"{x:.3f}" for x in each) + " |", flush=True)


def main():
    print("| M | K | N | " + " | ".join(PRECISIONS) + " |")
    print("|--:|--:|--:|" + "--:|" * len(PRECISIONS))
    with tempfile.TemporaryDirectory() as folder:
        tools = pathlib.Path(folder)
        run("cc", "-O2", "-shared", "-fPIC", "-o", tools / "count.so", ROOT / "tools/arm64/count.c")
        run("go", "build", "-o", tools / "product", "./bench/peers/product", cwd=ROOT, env=dict(os.environ, CGO_ENABLED="0", GOARCH="arm64"))
        for shape in SHAPES:
            m, k, n = shape
            file = tools / "matrices"
            file.write_bytes(b"".join(struct.pack("<f", random.uniform(-1, 1)) for _ in range(m * k + k * n + n)))
            cells, more = [], max(2, 64 // m)
            for precision in range(len(PRECISIONS)):
                once, again = (counted(tools, file, shape, precision, times) for times in (2, 2 + more))
                cells.append(f"{(again - once) / (more * m * k * n):.3f}")
            print(f"| {m} | {k} | {n} | " + " | ".join(cells) + " |", flush=True)
        attention(tools)


if __name__ == "__main__":
    main()
