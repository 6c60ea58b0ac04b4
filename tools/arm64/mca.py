#!/usr/bin/env python3
"""Predicts the cycles of the NEON kernels' loops by llvm-mca's model of a processor.

    python3 tools/arm64/mca.py [--cpu neoverse-v2]

It needs llvm-objdump and llvm-mca 19 (Debian: llvm-19). A loop's limit is its multiply-adds
of four lanes over the vector pipes that the model has; the models know no caches and no wrong
guesses. LLVM's models of Apple's processors have three vector pipes where these have four, so they are good
for the order of things only.

The whole tile is a block of 192 keys with 16 query rows: each loop as often as it runs, and
what lies between the loops.
"""

import argparse
import os
import pathlib
import re
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEYS, LANES, UNROLL = 192, 16, 4
ROWS = {"scores": 3, "addValues": 6}  # rows of a register tile
PIPES = {"neoverse-v2": 4, "neoverse-v1": 4, "neoverse-n2": 2, "apple-m1": 3}


def build(folder, program):
    binary = pathlib.Path(folder) / program
    subprocess.run(["go", "build", "-o", binary, f"./bench/peers/{program}"], cwd=ROOT, check=True,
                   env=dict(os.environ, CGO_ENABLED="0", GOARCH="arm64"))
    return binary


def disassemble(binary, package, routine):
    """Returns (address, text) of a routine's instructions."""
    symbol = f"github.com/flashkit-go/flashkit/{package}.{routine}.abi0"
    text = subprocess.run(["llvm-objdump-19", "-d", "--no-show-raw-insn", f"--disassemble-symbols={symbol}", binary],
                          check=True, capture_output=True, text=True).stdout
    lines = []
    for line in text.splitlines():
        if m := re.match(r"\s*([0-9a-f]+):\s+(.*)", line):
            lines.append((int(m[1], 16), re.sub(r"\s*<.*>$", "", m[2].replace("\t", " "))))
    if not lines:
        raise SystemExit(f"{binary} has no {routine}")
    return lines


def loops(lines):
    """Returns the innermost loops as ranges of instructions."""
    places = {address: i for i, (address, _) in enumerate(lines)}
    found = []
    for i, (_, text) in enumerate(lines):
        if m := re.match(r"(?:b\.\w+|cbn?z \w+,|b) (?:0x)?([0-9a-f]+)$", text):
            if (to := places.get(int(m[1], 16), i + 1)) <= i:
                found.append((to, i + 1))
    return [x for x in found if not any(y != x and x[0] <= y[0] and y[1] <= x[1] for y in found)]


def code(lines, begin, end):
    """Returns instructions without branches out of them."""
    return [text for _, text in lines[begin:end] if not re.match(r"(b|b\.\w+|cbn?z|ret)\b", text)]


def cycles(cpu, texts, iterations=1000):
    with tempfile.NamedTemporaryFile("w", suffix=".s") as f:
        f.write("\n".join(texts) + "\n")
        f.flush()
        out = subprocess.run(["llvm-mca-19", "-mtriple=aarch64", f"-mcpu={cpu}", "-mattr=+bf16", f"-iterations={iterations}", f.name],
                             check=True, capture_output=True, text=True).stdout
    return int(re.search(r"Total Cycles:\s+(\d+)", out)[1]) / iterations


def multiply_adds(texts):
    return sum(text.startswith(("fmla", "bfmmla")) for text in texts)


def hot(lines):
    """Returns the loop with the most multiply-adds."""
    return max(loops(lines), key=lambda x: multiply_adds(code(lines, *x)))


def around(lines, loop):
    """Returns what a group has around its loop: from its beginning, where a number of rows is compared, to the
    jump back there."""
    starts = [i for i, (_, text) in enumerate(lines[:loop[0]]) if text.startswith("cmp")]
    begin = next(i for i in reversed(starts) if lines[i + 1][1].startswith("b.lt"))
    end = next(i for i in range(loop[1], len(lines)) if re.match(r"b (?:0x)?[0-9a-f]+$", lines[i][1]))
    rest = slice(loop[1], end)
    skipped = tail(lines, loop[1])
    return code(lines, begin, loop[0]) + code(lines, skipped, rest.stop)


def tail(lines, i):
    """Returns where the loop of single steps that follows a loop ends."""
    return next(end for begin, end in sorted(loops(lines)) if begin >= i)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", default="neoverse-v2", choices=sorted(PIPES))
    cpu = parser.parse_args().cpu
    pipes = PIPES[cpu]
    with tempfile.TemporaryDirectory() as folder:
        binary, product = build(folder, "instructions"), build(folder, "product")
        routines = {name: disassemble(binary, "backends/simd", name + "NEON") for name in
                    ("scores", "addValues", "addProduct", "addProductT", "weights")}
        if not cpu.startswith("apple"):  # the model of Apple's processors has no BF16
            routines |= {name + ", bf16": disassemble(binary, "backends/simd", name + "NEONBF16") for name in ("scores", "addValues")}
        routines |= {name: disassemble(product, "internal/matmul", name + "NEON") for name in
                     ("multiply1", "multiply2", "widen1", "widen2")}
    print(f"| loop, {cpu} | instructions | multiply-adds | cycles | of the limit |\n|---|--:|--:|--:|--:|")
    taken = {}
    for name, lines in routines.items():
        texts = code(lines, *hot(lines))
        taken[name] = cycles(cpu, texts)
        share = f"{multiply_adds(texts) / pipes / taken[name]:.2f}" if name != "weights" else ""
        print(f"| {name} | {len(texts)} | {multiply_adds(texts)} | {taken[name]:.1f} | {share} |")
    between = {name: cycles(cpu, around(routines[name], hot(routines[name]))) for name in ("scores", "addValues")}
    print("\n| tile | cycles | of them weights | of the limit |\n|---|--:|--:|--:|")
    for dim in (64, 128):
        scores = KEYS / ROWS["scores"] * (dim / UNROLL * taken["scores"] + between["scores"])
        values = dim / ROWS["addValues"] * (KEYS / UNROLL * taken["addValues"] + between["addValues"])
        weights = KEYS * taken["weights"]
        all_of_it = scores + values + weights
        print(f"| D {dim} | {all_of_it:.0f} | {weights:.0f} | {2 * KEYS * LANES * dim / 4 / pipes / all_of_it:.2f} |")


if __name__ == "__main__":
    main()
