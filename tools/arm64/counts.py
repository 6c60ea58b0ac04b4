#!/usr/bin/env python3
"""Counts the instructions a multiply-add of the NEON kernels takes, and of ggml's attention.

    python3 tools/arm64/counts.py --ggml .venv/ggml-arm64

It needs what `make arm64-counts` installs: qemu-user (the static one has no plugins), a C
compiler, one for arm64, and ggml built for arm64. Programs run on an emulated processor: counts are exact, and
say nothing of time. A call's count is the difference between a program that calls twice and one
that calls once. The multiply-adds are those of both products of the pairs that see one another.
"""

import argparse
import os
import pathlib
import subprocess
import tempfile

PREFILL = [(1024, 1024, d, 1, mask) for d in (64, 128) for mask in ("none", "causal")]
DECODE = [(1, 512, 128, 8, "none"), (1, 4096, 128, 8, "none")]
ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*command, **options):
    return subprocess.run([str(c) for c in command], check=True, **options)


def counted(plugin, program, *args):
    """Returns the instructions of a program."""
    emulated = ["qemu-aarch64", "-plugin", f"{plugin},only=", "-d", "plugin", program, *args]
    text = run(*emulated, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True).stderr
    return int(text.split("instructions: ")[1].split(",")[0])


def of_a_call(plugin, program, *args, more=1):
    once, again = (counted(plugin, program, *args, n) for n in (1, 1 + more))
    return (again - once) / more


def multiply_adds(n, m, d, heads, mask):
    pairs = n * m if mask == "none" else n * (m - n) + n * (n + 1) // 2
    return 2 * d * heads * pairs


def kernels(kind, shape):
    """Returns our kernels for a shape, by the name of their row."""
    if shape[0] > 1:
        return {kind: "simd/fwd_neon"}
    return {kind: "simd/decode_neon"} | ({"f16, FHM": "simd/decode_neonfhm"} if kind == "f16" else {})


def ours(tools, kernel, kind, shape):
    n, m, d, heads, mask = shape
    name = f"b1-h{heads}-g{heads}-n{n}-m{m}-d{d}-{kind}" + ("-causal" if mask == "causal" else "")
    more = 8 if n == 1 else 1
    return of_a_call(tools / "count.so", tools / "instructions", kernel, name, more=more) / multiply_adds(*shape)


def ggmls(tools, kind, shape, path):
    return of_a_call(tools / "count.so", tools / "ggml", *shape[:4], kind, shape[4], path) / multiply_adds(*shape)


def build(tools, ggml):
    run("cc", "-O2", "-shared", "-fPIC", "-o", tools / "count.so", ROOT / "tools/arm64/count.c")
    run("go", "build", "-o", tools / "instructions", "./bench/peers/instructions", cwd=ROOT,
        env=dict(os.environ, CGO_ENABLED="0", GOARCH="arm64"))
    run("aarch64-linux-gnu-gcc", "-O2", "-static", "-I", ggml / "ggml/include", "-o", tools / "ggml", ROOT / "tools/arm64/ggml.c",
        ggml / "build/src/libggml-cpu.a", ggml / "build/src/libggml-base.a", "-lstdc++", "-lm", "-lpthread")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ggml", type=pathlib.Path, required=True, help="folder with ggml's source and its build for arm64")
    parser.add_argument("--short", action="store_true", help="rows of a quarter of the length")
    args = parser.parse_args()
    print("| N | M | D | heads | mask | K and V | ours | ggml, flash | ggml, naive | of the best |")
    print("|--:|--:|--:|--:|---|---|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        tools = pathlib.Path(folder)
        build(tools, args.ggml)
        for shape in PREFILL + DECODE:
            if args.short:
                shape = (max(1, shape[0] // 4), shape[1] // 4, *shape[2:])
            for kind in ("f32", "f16"):
                flash, naive = (ggmls(tools, kind, shape, path) for path in ("flash", "naive"))
                n, m, d, heads, mask = shape
                for name, kernel in kernels(kind, shape).items():
                    mine = ours(tools, kernel, kind, shape)
                    print(f"| {n} | {m} | {d} | {heads} | {mask} | {name} | {mine:.3f} | {flash:.3f} | {naive:.3f} | {mine / min(flash, naive):.2f} |", flush=True)


if __name__ == "__main__":
    main()
