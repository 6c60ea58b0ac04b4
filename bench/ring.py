#!/usr/bin/env python3
"""Times of package ring over MPI on this machine, beside the model of a step.

    make build ring && bench/ring.py bin/flashrun .venv/bin/mpiexec .venv/lib/libmpi_abi.so.1

Each rank has one processor: as many ranks as there are processors at most. Prints a table
for docs/scale.md."""
import json
import os
import subprocess
import sys

flashrun, mpiexec, library = sys.argv[1:4]
env = dict(os.environ, GOMAXPROCS="1", FLASHKIT_MPI=os.path.abspath(library))
print("| problem | passes | one rank | 2 ranks | efficiency | by the model | sent | waited |")
print("|---|---|---|---|---|---|---|---|")
for n in (1024, 2048, 4096, 8192):
    for band in ("", "-causal"):
        for both in (False, True):
            if both and n > 4096:
                continue
            name = f"b1-h8-g8-n{n}-m{n}-d128-f32{band}"
            command = [mpiexec, "-n", "2", "-bind-to", "core", flashrun, "ring", "--problem", name, "--json", "--quiet", "--workers", "1"]
            r = json.loads(subprocess.run(command + ["--backward"] * both, env=env, check=True, capture_output=True).stdout)
            model = r["one_seconds"] / (r["ranks"] * r["predicted_seconds"])
            print(f"| {name} | {'both' if both else 'forward'} | {r['one_seconds'] * 1e3:.0f} ms | {r['seconds'] * 1e3:.0f} ms | "
                  f"{r['efficiency']:.2f} | {model:.2f} | {max(r['sent_bytes']) / 1e6:.1f} MB | {max(r['wait_seconds']) * 1e3:.1f} ms |", flush=True)
