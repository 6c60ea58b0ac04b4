#!/usr/bin/env python3
"""Rates of loops for 8-bit products with AVX2, in multiply-adds a cycle: what the instructions allow on this processor.

    python int8_avx2.py [MODEL_FOLDER...]

It writes loops in assembly, compiles them with cc, and runs each in the L1 cache. The clock is measured by dependent
subtractions. For each model folder it also prints the share of groups of four k in which VPMADDUBSW saturates, for rows
with an offset of 128 and weights with a scale for each column, in panels of 8 and of 16 columns.
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile

ROWS = ["(%rax)", "(%rax,%rdx)", "(%rax,%rdx,2)", "(%rax,%r9)", "(%rax,%rdx,4)", "(%rax,%r10)", "(%rax,%r9,2)", "(%rax,%r11)",
        "(%rax,%rdx,8)", "(%rax,%rbx)", "(%rax,%r10,2)", "(%rax,%r12)"]
STEP = ["movslq (%r8), %rax", "add %rdi, %rax", "add $4, %r8", "prefetcht0 1024(%rsi)"]
HEAD = """#include <stdio.h>
#include <stdlib.h>
#include <time.h>
asm(".section .rodata\\n.balign 32\\nlow: .fill 16, 2, 0x00ff\\n.text");
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
"""
LOOP = """__attribute__((noinline)) static void %s(char *a, char *b, long k, int *at) {
    register int *r8 asm("r8") = at;
    asm volatile("mov $448, %%%%rdx\\n lea (%%%%rdx,%%%%rdx,2), %%%%r9\\n lea (%%%%rdx,%%%%rdx,4), %%%%r10\\n lea (%%%%r9,%%%%rdx,4), %%%%r11\\n"
        "lea (%%%%rdx,%%%%rdx,8), %%%%rbx\\n lea (%%%%r9,%%%%rdx,8), %%%%r12\\n 1:\\n %s\\n dec %%%%rcx\\n jnz 1b"
        : "+D"(a), "+S"(b), "+c"(k), "+r"(r8) :: "memory", "rax", "rdx", "r9", "r10", "r11", "rbx", "r12", %s);
}
"""
MAIN = """int main(void) {
    char *a = aligned_alloc(64, 1 << 20), *b = aligned_alloc(64, 1 << 20);
    int *at = aligned_alloc(64, 4096);
    for (int i = 0; i < 1 << 20; i++) a[i] = i * 7, b[i] = i * 5;
    for (int i = 0; i < 1024; i++) at[i] = 4 * (i * 37 %% 96);
    double clock = 0;
    for (int r = 0; r < 20; r++) {
        long n = 20000000; double z = now();
        asm volatile("1: dec %%0\\n jnz 1b" : "+r"(n));
        z = 2e7 / (now() - z);
        if (z > clock) clock = z;
    }
    printf("clock %%.2f GHz\\n", clock / 1e9);
%s}
"""
RUN = """    { double best = 1e9;
      for (int r = 0; r < 60; r++) { double z = now(); for (int i = 0; i < 200; i++) %s(a, b, 96, at); z = now() - z; if (z < best) best = z; }
      double cycles = best * clock / (200 * 96.); printf("%%-72s %%5.2f cycles, %%5.2f a cycle\\n", "%s", cycles, %d / cycles); }
"""


def loops():
    """Return the loops: title, instructions, and the number of multiply-adds or instructions in an iteration."""
    add = lambda r, x: f"vpaddd %ymm{x}, %ymm{r}, %ymm{r}"
    out = [(f"{op} alone, instructions", [f"{op} %ymm15, %ymm14, %ymm{r}" for r in range(12)], 12) for op in ("vpmaddwd", "vpmaddubsw", "vpaddd", "vpsignb")]
    for size in (1, 2, 3):
        body = []
        for r in range(0, 12, size):
            body += [f"vpmaddwd %ymm15, %ymm15, %ymm{12 + i}" for i in range(size)] + [add(r + i, 12 + i) for i in range(size)]
        out.append((f"{size} vpmaddwd and {size} vpaddd in turns", body, 12 * 16))
    out.append(("vpmaddwd and vpshufd in turns", ["vpmaddwd %ymm15, %ymm15, %ymm13", "vpshufd $0xe4, %ymm15, %ymm14"] * 12, 12 * 16))
    kernel = ["add $4, %rdi", "prefetcht0 1024(%rsi)", "vpmovsxbw (%rsi), %ymm12", "vpmovsxbw 16(%rsi), %ymm13"]
    for r in range(6):
        kernel += [f"vpbroadcastd {ROWS[r].replace('rax', 'rdi')}, %ymm14", "vpmaddwd %ymm12, %ymm14, %ymm15", add(2 * r, 15), "vpmaddwd %ymm13, %ymm14, %ymm14", add(2 * r + 1, 14)]
    out.append(("the kernel: vpmaddwd, 6 rows, 16 columns", kernel + ["add $32, %rsi"], 6 * 32))
    tall = STEP + ["vpmovsxbw (%rsi), %ymm12"]
    for r in range(12):
        tall += [f"vpbroadcastd {ROWS[r]}, %ymm14", "vpmaddwd %ymm12, %ymm14, %ymm14", add(r, 14)]
    out.append(("the kernel with 12 rows, 8 columns", tall + ["add $16, %rsi"], 12 * 16))
    bytes_ = STEP + ["vmovdqu (%rsi), %ymm12"]
    for r in range(0, 12, 2):
        bytes_ += [f"vpbroadcastd {ROWS[r]}, %ymm14", f"vpbroadcastd {ROWS[r + 1]}, %ymm13", "vpmaddubsw %ymm12, %ymm14, %ymm14", "vpmaddubsw %ymm12, %ymm13, %ymm13",
                   "vpmaddwd %ymm15, %ymm14, %ymm14", "vpmaddwd %ymm15, %ymm13, %ymm13", add(r, 14), add(r + 1, 13)]
    out.append(("vpmaddubsw, vpmaddwd by ones, vpaddd: 12 rows, 8 columns", bytes_ + ["add $32, %rsi"], 12 * 32))
    split = STEP + ["vmovdqu (%rsi), %ymm13", "vpsllw $8, %ymm13, %ymm12", "vpsraw $8, %ymm12, %ymm12", "vpsraw $8, %ymm13, %ymm13"]
    for r in range(12):
        split += [f"vpbroadcastd {ROWS[r]}, %ymm14", "vpsrlw $8, %ymm14, %ymm15", "vpmaddwd %ymm13, %ymm15, %ymm15", add(r, 15), "vpand low(%rip), %ymm14, %ymm14",
                  "vpmaddwd %ymm12, %ymm14, %ymm14", add(r, 14)]
    out.append(("even and odd bytes, vpmaddwd: 12 rows, 8 columns", split + ["add $32, %rsi"], 12 * 32))
    return out


def rates():
    found = loops()
    clobbers = ", ".join(f'"ymm{i}"' for i in range(16))
    text = HEAD + "".join(LOOP % (f"f{i}", "\\n ".join(body).replace("%", "%%"), clobbers) for i, (_, body, _) in enumerate(found)).replace("%%%%", "%%")
    text += MAIN % "".join(RUN % (f"f{i}", title, units) for i, (title, _, units) in enumerate(found))
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "loops.c"
        source.write_text(text)
        subprocess.run(["cc", "-O1", "-mavx2", "-o", source.with_suffix(""), source], check=True)
        subprocess.run([source.with_suffix("")], check=True)


def saturating(folder):
    """Print the share of groups of four k with two weights of equal sign whose magnitudes sum to more than 128."""
    import numpy as np

    data = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    counts = {8: [0, 0], 16: [0, 0]}
    for name, x in json.loads(data[8 : 8 + size]).items():
        if "layer." not in name or len(x.get("shape", ())) != 2 or "embedding" in name:
            continue
        w = np.frombuffer(data, np.float32, x["shape"][0] * x["shape"][1], 8 + size + x["data_offsets"][0]).reshape(x["shape"])
        q = np.rint(w * (127 / np.abs(w).max(1, keepdims=True)))
        groups = (np.abs(q.reshape(len(q), -1, 2, 2).sum(3)) > 128).any(2)
        for columns, c in counts.items():
            panels = groups[: len(q) // columns * columns].reshape(-1, columns, groups.shape[1]).any(1)
            c[0], c[1] = c[0] + panels.sum(), c[1] + panels.size
    print(f"{folder.name}: VPMADDUBSW saturates in " + ", ".join(f"{a / b:.3f} of groups of 4 x {n}" for n, (a, b) in counts.items()))


rates()
for path in sys.argv[1:]:
    saturating(pathlib.Path(path))
