#!/usr/bin/env python3
"""Check 8-bit products of random matrices against NumPy's integers.

    python int8_products.py [--products N] [--emulated]

Each product has random dimensions, so all tails occur. Rows of A and columns of B are rounded here, from the definition in
internal/matmul/int8.go. In every second product, elements are integers and all scales are 1: C then holds the integers
themselves. The sums are NumPy's int64 sums. Every element must be equal.

The instruction sets are this processor's best, the ones that it uses if newer ones are switched off, and portable Go. With --emulated they are also the three of arm64: NEON,
FEAT_DotProd and FEAT_I8MM, under qemu-aarch64-static.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
INT8 = 3  # the precision's number in requests
LEVELS = np.float32(127)
OFF = {"": "this processor", "cpu.amxtile=off": "without AMX", "cpu.avx512f=off": "without AVX-512",
       "cpu.avx512f=off,cpu.avxvnni=off": "without AVX-512 and AVX-VNNI", "cpu.avx2=off,cpu.avx512f=off": "portable Go"}
NATIVE = [(title, "", [], debug) for debug, title in OFF.items()]
ARM64 = [(cpu, "arm64", ["qemu-aarch64-static", "-cpu", cpu], "") for cpu in ("cortex-a53", "neoverse-n1", "max")]


def rounded(x, axis):
    """Returns the integers and the scales of vectors along an axis."""
    most = np.abs(x).max(axis, keepdims=True)
    return np.rint(x * (LEVELS / most)).astype(np.int64), most / LEVELS


def draw(rng, whole):
    m, n, k = rng.integers(1, 20), rng.integers(1, 100), rng.integers(1, 140)
    if not whole:
        return rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    a, b = (rng.integers(-127, 128, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    a[:, 0], b[0] = 127, -127  # the scales are 1
    return a, b


def check(command, environment, folder, products, seed):
    """Returns the number of elements, and the dimensions of each product that differs."""
    rng, elements, bad = np.random.default_rng(seed), 0, []
    given, result = folder / "given", folder / "result"
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def ask(**request):
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            reply = json.loads(process.stdout.readline())
            if "error" in reply:
                raise SystemExit(reply["error"])

        for i in range(products):
            a, b = draw(rng, i % 2 == 0)
            (m, k), n = a.shape, b.shape[1]
            given.write_bytes(a.tobytes() + b.tobytes() + np.zeros(n, np.float32).tobytes())
            ask(op="open", file=str(given), m=int(m), k=int(k), n=int(n), precision=INT8)
            ask(op="run", times=1)
            result.write_bytes(b"")
            ask(op="save", file=str(result))
            (rows, row_scales), (columns, column_scales) = rounded(a, 1), rounded(b, 0)
            want = (rows @ columns).astype(np.float32) * row_scales * column_scales
            got = np.fromfile(result, np.float32).reshape(m, n)
            elements += want.size
            if not np.array_equal(want, got):
                bad.append(f"{m}x{k}x{n}")
        process.stdin.close()
    return elements, bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--products", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--emulated", action="store_true", help="also the instruction sets of arm64")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(4), "little")
    failed = False
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for title, arch, emulator, debug in NATIVE + ARM64 * options.emulated:
            environment = dict(os.environ, CGO_ENABLED="0", GODEBUG=debug)
            program = folder / ("product" + arch)
            if not program.exists():
                build = dict(environment, GODEBUG="", **({"GOARCH": arch} if arch else {}))
                subprocess.run(["go", "build", "-o", program, "./bench/peers/product"], cwd=ROOT, env=build, check=True)
            elements, bad = check([*emulator, str(program)], environment, folder, options.products, seed)
            failed |= bool(bad)
            print(f"{title}: {options.products} products, {elements} elements, {len(bad)} products differ {' '.join(bad[:5])}".rstrip(), flush=True)
    if failed:
        raise SystemExit(f"seed {seed}")


if __name__ == "__main__":
    main()
