#!/usr/bin/env python3
"""Times of package ring over MPI on this machine, beside the model of a step.

    make build ring && bench/ring.py bin/flashrun .venv/bin/mpiexec .venv/lib/libmpi_abi.so.1 [--runs 3] [problem[,both] ...]

Two ranks of one processor each, beside one rank and beside one process of two processors, which
has no messages. By default four lengths. Prints a table for docs/scale.md."""
import json
import os
import subprocess
import sys

flashrun, mpiexec, library, *asked = sys.argv[1:]
runs = "3"
if asked[:1] == ["--runs"]:
    runs, asked = asked[1], asked[2:]
cases = [(x.split(",")[0], x.endswith(",both")) for x in asked] or [
    (f"b1-h8-g8-n{n}-m{n}-d128-f32{band}", both)
    for n in (1024, 2048, 4096, 8192) for band in ("", "-causal") for both in (False, True) if not both or n <= 4096]


def ring(name, both, processors, *launcher):
    env = dict(os.environ, GOMAXPROCS=processors, FLASHKIT_MPI=os.path.abspath(library))
    command = [*launcher, flashrun, "ring", "--problem", name, "--json", "--quiet", "--workers", processors, "--runs", runs]
    command += [] if launcher else ["--ranks", "1"]
    return json.loads(subprocess.run(command + ["--pass", "fwd,bwd"] * both, env=env, check=True, capture_output=True).stdout)


print("| problem | passes | one rank | one process of two | 2 ranks | of one process | of one rank | by the model | sent | waited |")
print("|---|---|---|---|---|---|---|---|---|---|")
for name, both in cases:
    two = ring(name, both, "2")
    r = ring(name, both, "1", mpiexec, "-n", "2", "-bind-to", "core")
    model = r["one_seconds"] / (r["ranks"] * r["predicted_seconds"])
    print(f"| {name} | {'both' if both else 'forward'} | {r['one_seconds'] * 1e3:.0f} ms | {two['seconds'] * 1e3:.0f} ms | {r['seconds'] * 1e3:.0f} ms | "
          f"{two['seconds'] / r['seconds']:.2f} | {r['efficiency']:.2f} | {model:.2f} | {max(r['sent_bytes']) / 1e6:.1f} MB | {max(r['wait_seconds']) * 1e3:.1f} ms |", flush=True)
