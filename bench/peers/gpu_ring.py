"""Time one sequence over all GPUs of this machine, test faults of its ranks, and make the table.

    python3 gpu_ring.py --json ring.json [--seconds 300] [faults] [values] [times]
    python3 gpu_ring.py --table ring.json [more.json ...]

gpu-test.sh ring runs the first command in the folder of make gpu-test, with flashrun, peer.test and
nccl.test. It needs at least two GPUs. The cells are timed in the order of their importance. Cells
that would end after the given seconds are left out, and listed as such in the JSON file. If that
file exists, a run adds to it: it repeats the steps faults and values, and times only cells that the
file lacks. The second command prints the table of docs/scale.md. Of cells that several files have,
the last counts.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

from gpu_ring_faults import ENV, end, free_port, processes, tests

BEGIN = time.monotonic()
HEADS, DIMS, MASKS = ((32, 8), (16, 16)), (64, 128), ("none", "causal")
LENGTHS = (24000, 14000, 9000, 7000, 5000, 3000, 2000, 1000, 536)  # 65536 rows
PEER_SECONDS = 60  # the maximum time of context_parallel.py


def output(*command):
    """Return a command's standard output, or "" if the command fails."""
    try:
        return subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=60).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def smi(what):
    return output("nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits").splitlines()


def memory():
    """Return the MiB in use on each GPU."""
    return [int(x) for x in smi("memory.used")]


def versions():
    torch = "import torch; print(torch.__version__)"
    nccl = "import ctypes, os; v = ctypes.c_int(); ctypes.CDLL(os.environ['FLASHKIT_NCCL']).ncclGetVersion(ctypes.byref(v)); print(v.value)"
    return {
        "gpu": smi("name"), "driver": smi("driver_version")[0], "links": output("nvidia-smi", "topo", "-m"),
        "flashrun": output("./flashrun", "version"), "torch": output(sys.executable, "-c", torch),
        "nccl": output(sys.executable, "-c", nccl), "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def problem(heads, dim, mask, tokens):
    return f"b1-h{heads[0]}-g{heads[1]}-n{tokens}-m{tokens}-d{dim}-bf16" + ("-causal" if mask == "causal" else "")


def cost(p):
    """Return the seconds of both passes on one H200, roughly."""
    h, n, d = (int(re.search(rf"-{x}(\d+)", p).group(1)) for x in "hnd")
    return 14 * h * n * n * d / (4.4e14 if d > 64 else 3.5e14) / (2 if "causal" in p else 1)


def flashrun(cell, problems, limit, *more):
    """Run flashrun ring, with both passes of the problems, and return a result for each problem."""
    command = ["./flashrun", "ring", "--device", ",".join(map(str, range(cell["gpus"]))), "--transport", cell["transport"], "--pass", "fwd,bwd", "--json", "--quiet",
               "--problem", ",".join(problems), "--runs", str(cell["runs"]), *(["--ordered"] if cell["ordered"] else []),
               *(["--lengths", ",".join(map(str, cell["lengths"]))] if cell["lengths"] else []), *more]
    try:
        done = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=limit)
        out, error = done.stdout, done.stderr.strip()[-500:] if done.returncode else ""
    except subprocess.TimeoutExpired as e:
        out, error = (e.stdout or b"").decode(), f"ended after {limit:.0f} s"
    lines = [json.loads(x) for x in out.splitlines() if x.endswith("}")]
    results = []
    for name, r in zip(problems, lines + [None] * len(problems)):
        x = dict(cell, problem=name, error=error or "no result") if r is None else dict(cell, problem=name, **{k: v for k, v in r.items() if k not in ("problem", "ordered")})
        if r:
            one, both = r["one_seconds"] - r["one_forward_seconds"], r["seconds"] - r["forward_seconds"]
            x["forward_efficiency"] = r["one_forward_seconds"] / r["ranks"] / r["forward_seconds"]
            x["backward_efficiency"] = one / r["ranks"] / both
        results.append(x)
    return results


def cell(gpus, transport, ordered, runs, lengths=()):
    return {"gpus": gpus, "transport": transport, "ordered": ordered, "runs": runs, "lengths": lengths}


def values(gpus):
    """Compare a small cell of each kind with one GPU."""
    small = [problem(h, d, m, 2048) for h in HEADS for d in DIMS for m in MASKS]
    jobs = [(cell(gpus, t, o, 1, packed), list) for t in ("peer", "nccl") for o in (False, True)
            for packed, list in (((), small), ((1000, 600, 300, 100, 48), [problem((32, 8), 128, "causal", 1)]))]
    results = [None] * len(jobs)

    def check(i):
        results[i] = flashrun(*jobs[i], 120, "--check")
    threads = [threading.Thread(target=check, args=(i,)) for i in range(len(jobs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return [x for list in results for x in list]


def left(seconds):
    return seconds - (time.monotonic() - BEGIN)


def times(gpus, seconds, report):
    """Time the cells, the most important first, as long as there is time."""
    usual = [problem(h, d, m, 65536) for h in HEADS for d in DIMS for m in MASKS]
    long = [problem((32, 8), 128, m, 262144) for m in ("causal", "none")]
    packed = [problem((32, 8), 128, "causal", 1)]
    wide, narrow = ([p for p in usual if size(p, "d") == d] for d in (128, 64))
    plan = [(cell(gpus, "peer", False, 3), usual), (cell(gpus, "nccl", False, 3), usual), (cell(gpus, "peer", False, 1), long[:1]),
            (cell(gpus, "peer", False, 3, LENGTHS), packed), (cell(gpus, "nccl", False, 3, LENGTHS), packed),
            (cell(gpus, "peer", True, 1), wide), (cell(gpus, "nccl", True, 1), wide), "peers",
            (cell(gpus, "peer", False, 1), long[1:]), (cell(gpus, "nccl", False, 1), long[:1]),
            (cell(gpus, "peer", True, 1), narrow), (cell(gpus, "nccl", True, 1), narrow), (cell(gpus, "nccl", False, 1), long[1:])]
    done = {key(x) for x in report["cells"]}
    for x in plan:
        if x == "peers":
            report["context_parallel"] += context_parallel(gpus, usual + long, {x["cell"] for x in report["context_parallel"]}, left(seconds))
            print(f"context_parallel: {time.monotonic() - BEGIN:.0f} s", flush=True)
            continue
        c, problems = x
        problems = [p for p in problems if key(dict(c, problem=p)) not in done]
        if not problems:
            continue
        each = 1 + 1 / gpus if problems[0] in long else (2 + 2 / gpus) * (1.3 if c["ordered"] else 1)
        chosen = []
        total = 4.0
        for p in problems:
            total += (cost(p) if p not in packed else 0.1) * (1 + (c["runs"] + 1) * each)
            (chosen if total < left(seconds) else report["left_out"]).append(p if total < left(seconds) else dict(c, problem=p))
        if chosen:
            report["cells"] += flashrun(c, chosen, left(seconds))
            print(f"{c['transport']}{' ordered' if c['ordered'] else ''}: {len(chosen)} problems, {time.monotonic() - BEGIN:.0f} s", flush=True)


def context_parallel(gpus, problems, done, limit):
    """Time PyTorch's context parallel on the same GPUs, except for the cells in `done`."""
    cells = []
    for p in problems:
        h, g, n, d = (re.search(rf"-{x}(\d+)", p).group(1) for x in "hgnd")
        cells.append(f"{h}/{g},{d},{n},{'causal' if 'causal' in p else 'none'}")
    cells = [x for x in cells if x not in done]
    if not cells or limit < 20:
        return []
    with tempfile.TemporaryFile("w+") as f:
        try:
            p = subprocess.Popen(["torchrun", "--nproc-per-node", str(gpus), "--master-port", str(free_port()), "context_parallel.py", *cells],
                                 env=dict(ENV, RUNS="2"), stdout=f, stderr=subprocess.DEVNULL)
        except FileNotFoundError:
            return []
        try:
            p.wait(timeout=min(PEER_SECONDS, max(1, limit)))
        except subprocess.TimeoutExpired:
            end(p)
        f.seek(0)
        out = f.read()
    return [json.loads(x) for x in out.splitlines() if x.startswith("{") and x.endswith("}")]


def save(path, report):
    with open(path, "w") as f:
        json.dump(report, f, indent=1)


def run(path, seconds, steps):
    gpus = len(smi("name"))
    if gpus < 2:
        print("one GPU here")
        return True
    report = {"memory_mib": {"before": memory()}, "faults": [], "values": [], "cells": [], "context_parallel": [], "left_out": []}
    if os.path.exists(path):
        with open(path) as f:
            report = json.load(f)
    report.update(gpus=gpus, versions=versions())
    if "faults" in steps:
        report["faults"] = processes(gpus) + tests()
        save(path, report)
        print(f"faults: {time.monotonic() - BEGIN:.0f} s", flush=True)
    if "values" in steps:
        report["values"] = values(gpus)
        save(path, report)
        print(f"values: {time.monotonic() - BEGIN:.0f} s", flush=True)
    if "times" in steps:
        report["left_out"] = []
        report["cells"] = [x for x in report["cells"] if not x.get("error")]
        times(gpus, seconds, report)
    for _ in range(5):
        report["memory_mib"]["after"] = memory()
        if all(b <= a + 16 for a, b in zip(report["memory_mib"]["before"], report["memory_mib"]["after"])):
            break
        time.sleep(1)  # a driver frees memory a moment after its process ended
    report.setdefault("seconds", {}).update({"+".join(steps): round(time.monotonic() - BEGIN)})
    save(path, report)
    bad = [x for x in report["faults"] if x["result"] == "FAIL"] + [x for x in report["values"] + report["cells"] if x.get("error")]
    if any(b > a + 16 for a, b in zip(report["memory_mib"]["before"], report["memory_mib"]["after"])):
        bad.append({"memory_mib": report["memory_mib"]})
    for x in bad:
        print(json.dumps(x))
    return not bad


def milliseconds(seconds):
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def key(x):
    return (x["gpus"], x["problem"], x["transport"], x["ordered"], tuple(x["lengths"] or ()))


def table(paths):
    """Print the Markdown tables of reports: a row for each problem and number of GPUs."""
    cells, peers, names = {}, {}, []
    for path in paths:
        with open(path) as f:
            report = json.load(f)
        names.append(report["versions"])
        cells.update({key(x): x for x in report["cells"] if not x.get("error")})
        peers.update({(report["gpus"], x["cell"]): x for x in report["context_parallel"] if "seconds" in x})
    v = names[-1]
    n = int(v["nccl"] or 0)
    print(f"{v['gpu'][0]}, driver {v['driver']}, NCCL {n // 10000}.{n // 100 % 100}.{n % 100}, PyTorch {v['torch']}, {v['date'][:10]}\n")
    lines = [["GPUs", "rows", "heads", "D", "mask", "one GPU: forward, both", "peer copies: forward", "backward", "NCCL: forward", "backward",
              "ordered, peer copies: both", "ordered, NCCL: both", "context parallel: forward, both"]]
    rows = sorted({(x[0], x[1], x[4]) for x in cells}, key=lambda r: (r[0], len(r[2]), size(r[1]), r[1]))
    for gpus, name, lengths in rows:
        h, g, n, d = size(name, "hgnd")
        mask = "causal" if "causal" in name else "none"
        got = {(t, o): cells.get((gpus, name, t, o, lengths)) for t in ("peer", "nccl") for o in (False, True)}
        some = next(x for x in got.values() if x)
        p = peers.get((gpus, f"{h}/{g},{d},{n},{mask}"))
        row = [gpus, f"{sum(lengths)} packed" if lengths else n, f"{h}/{g}", d, mask, f"{milliseconds(some['one_forward_seconds'])}, {milliseconds(some['one_seconds'])}"]
        for t in ("peer", "nccl"):
            x = got[t, False]
            row += [f"{milliseconds(x['forward_seconds'])}, {x['forward_efficiency']:.2f}", f"{milliseconds(x['seconds'] - x['forward_seconds'])}, {x['backward_efficiency']:.2f}"] if x else ["", ""]
        row += [milliseconds(got[t, True]["seconds"]) if got[t, True] else "" for t in ("peer", "nccl")]
        row.append(f"{milliseconds(p['forward_seconds'][0])}, {milliseconds(p['seconds'][0])}" if p else "")
        lines.append([str(x) for x in row])
    used = [i for i in range(len(lines[0])) if any(x[i] for x in lines[1:])]
    for at, x in enumerate(lines):
        print("| " + " | ".join(x[i] for i in used) + " |" + ("\n" + "|---" * len(used) + "|" if at == 0 else ""))
    run = {x[0] for x in cells}
    print("\nNever run here: " + (", ".join(str(n) for n in (2, 4, 8) if n not in run) or "none") + " GPUs")


def size(name, of="n"):
    found = [int(re.search(rf"-{x}(\d+)", name).group(1)) for x in of]
    return found if len(of) > 1 else found[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", default="ring.json", help="the file to write")
    parser.add_argument("--seconds", type=float, default=300, help="time for all steps")
    parser.add_argument("--table", nargs="+", metavar="FILE", help="print the table of these files")
    parser.add_argument("steps", nargs="*", help="faults, values, times: all by default")
    args = parser.parse_args()
    if args.table:
        return table(args.table)
    return 0 if run(args.json, args.seconds, args.steps or ["faults", "values", "times"]) else 1


if __name__ == "__main__":
    sys.exit(main())
