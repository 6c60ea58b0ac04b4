"""Time flashkit's Go API beside the best of all CPU peers on random problems.

    make peers-random SEED=7
    python bench/peers/cpu_random.py bin/peers-ours --random 7 --count 120 --threads 1,2 --json random.json
    python bench/peers/cpu_random.py bin/peers-ours --random 7 --count 120 --start 40 --only f32 --pass bwd
    python bench/peers/cpu_random.py bin/peers-ours --problem b48-h1-g1-n3-m3-d40-f32-causal --repeats 5
    python bench/peers/cpu_random.py bin/peers-ours --below random.json --repeats 5 --json again.json
    python bench/peers/cpu_random.py --summary random.json

A seed determines the problems: batch 1-64, 1-32 heads, groups of 1-8 query heads, 1-8192 query rows and keys, half of the
problems square, D from 32 to 256, three types, four masks. A problem has at most --flops FLOPs and --bytes bytes. Rows without
keys are left out, as PyTorch returns NaN for them. --problem times named problems instead, and --below the problems that have
a ratio below 1 in a file.

Each pass of a problem is timed in --repeats runs over the whole list. In a run a new process of flashkit and the peers of
cpu_peers.py alternate, in --rounds turns, with equal numbers of threads. A time is the median of the turns' medians. The
best peer is the peer with the smallest time. The ratio is its time over flashkit's: above 1, flashkit is faster. flashkit's
outputs exist before the calls; "fresh" is a time with outputs that each call allocates.

Linux shares processors between sessions before it shares them between processes. On a busy machine, start a session with a
larger share, with root's rights:

    setsid --wait sh -c 'echo -19 >/proc/self/autogroup && exec python bench/peers/cpu_random.py bin/peers-ours --random 7'

The peers' threads wait for each other by spinning. Where another program uses a processor, two threads of a peer can take
far longer than one, so ratios of two threads need an idle machine.
"""

import argparse
import json
import math
import os
import pathlib
import random
import re
import statistics
import sys
import tempfile
import time

import results

DIMS = (32, 40, 64, 72, 80, 96, 128, 192, 256)
DTYPES = ("f32", "f16", "bf16")
PASSES = {"fwd": False, "bwd": True}
FLASHKIT, FRESH = "flashkit", "flashkit fresh"
SIZES = ((0, 2e7, "under 2e7 FLOP"), (2e7, 1e9, "2e7 to 1e9 FLOP"), (1e9, math.inf, "over 1e9 FLOP"))  # of the forward pass


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda s: s.split(",")
    parser.add_argument("ours", nargs="?", type=os.path.abspath, help="bench/peers/ours, built")
    parser.add_argument("--random", dest="seed", type=int, help="seed of the problems; random by default")
    parser.add_argument("--count", type=int, default=120, help="number of problems")
    parser.add_argument("--start", type=int, default=0, help="index of the first timed problem")
    parser.add_argument("--only", default="", help="only problems whose name contains this text")
    parser.add_argument("--problem", dest="problems", type=names, default=[], help="names of problems, instead of random problems")
    parser.add_argument("--below", type=pathlib.Path, metavar="JSON", help="the problems with a ratio below 1 in a file that --json wrote")
    parser.add_argument("--threads", type=lambda s: [int(x) for x in s.split(",")], default=[1, 2])
    parser.add_argument("--pass", dest="passes", type=names, default=list(PASSES), help="fwd, bwd or both (default both)")
    parser.add_argument("--flops", type=float, default=1.2e10, help="largest problem, forward and without mask")
    parser.add_argument("--bytes", type=float, default=4e8, help="largest problem, of Q, K, V and O in float32")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.03, help="of a turn")
    parser.add_argument("--json", type=pathlib.Path, help="write all times to this file after each problem")
    parser.add_argument("--results", metavar="FILE", help="also write a table of docs/performance.md")
    parser.add_argument("--summary", type=pathlib.Path, metavar="JSON", help="print the summary of a file that --json wrote, without timing")
    args = parser.parse_args()
    if not args.summary and not args.ours:
        parser.error("ours: the program bench/peers/ours, built, or --summary JSON")
    if unknown := set(args.passes) - set(PASSES):
        parser.error(f"--pass {', '.join(sorted(unknown))}: not fwd or bwd")
    if args.seed is None:
        args.seed = random.SystemRandom().randrange(1 << 31)
    return args


def draw(r, args):
    """Return the fields of a random cpu_peers.Case within the limits."""
    near = lambda low, high: round(math.exp(r.uniform(math.log(low), math.log(high))))
    while True:
        b, h, n = near(1, 64), near(1, 32), near(1, 8192)
        g = h // r.choice([x for x in range(1, 9) if h % x == 0])
        m = n if r.random() < 0.5 else near(1, 8192)
        d, dtype, band, left = r.choice(DIMS), r.choice(DTYPES), r.choice(("none", "topleft", "causal", "window")), near(8, 1024)
        if band == "topleft" and n == m:
            band = "causal"
        if band in ("causal", "window") and n > m:  # rows without keys
            continue
        if (band == "window" or band == "causal" and n != m) and n * m > 1 << 24:  # peers need the mask as a matrix
            continue
        if 4 * b * h * n * m * d > args.flops or 8 * b * d * (h * n + g * m) > args.bytes:
            continue
        return dict(b=b, h=h, g=g, n=n, m=m, d=d, dtype=dtype, band=band, left=left if band == "window" else 0)


def parse(name):
    """Return the fields of the cpu_peers.Case with this name."""
    sizes = "-".join(rf"{letter}(?P<{letter}>\d+)" for letter in "bhgnmd")
    m = re.fullmatch(sizes + r"-(?P<dtype>f32|f16|bf16)(?P<causal>-causal(?P<topleft>-topleft)?)?(-window(?P<left>\d+)\.0)?", name)
    if not m or m["causal"] and m["left"]:
        raise SystemExit(f"--problem {name}: not a plain problem without mask, causal, or with a window of keys before the row's own")
    band = "topleft" if m["topleft"] else "causal" if m["causal"] else "window" if m["left"] else "none"
    return {x: int(m[x]) for x in "bhgnmd"} | dict(dtype=m["dtype"], band=band, left=int(m["left"] or 0))


def chosen(args):
    """Return the fields of the cases to time."""
    if args.below:
        judged = filter(None, map(judge, json.loads(args.below.read_text())["cells"]))
        args.problems += dict.fromkeys(x["problem"] for x in judged if x["ratio"] < 1)
    if args.problems:
        return [parse(name) for name in args.problems]
    r = random.Random(args.seed)
    return [draw(r, args) for _ in range(args.count)]


def settle():
    """Wait until threads of this process that still spin after the last turn sleep."""
    for _ in range(50):
        before = time.process_time()
        time.sleep(0.01)
        if time.process_time() - before < 0.002:
            return


class Go:
    """flashkit's cell, timed with or without new outputs."""

    def __init__(self, ours, fresh):
        self.ours, self.fresh, self.kernels = ours, fresh, []

    def turn(self, seconds):
        reply = self.ours.program.ask(op="time", cell=self.ours.cell, seconds=seconds, fresh=self.fresh)
        self.kernels.append(reply["kernel"])
        return reply["seconds"], reply["least"]


def measure(args, case, threads, seed, folder):
    """Time a pass of a problem in turns, with a new process of flashkit. Return a cell."""
    import cpu_peers
    from forms_sides import Ours, Program

    program = Program(args.ours, threads)
    x = case.tensors(seed)
    ours = Ours(program, case, seed, 600, folder=folder, tensors=x)
    want = ours.outputs()
    calls, refused = cpu_peers.open_peers(case, x, threads, want)
    go = Go(ours, False)
    own, peers = {FLASHKIT: go, FRESH: Go(ours, True)}, {name: call for name, (call, _) in calls.items()}
    turns = {name: [] for name in own | peers}
    for i in range(args.rounds):
        if i == 1:
            peers = {name: peers[name] for name in cpu_peers.able({name: turns[name][0][0] for name in peers})}
        order = list((own | peers).items())
        random.shuffle(order)
        for name, side in order:
            if threads > 1:
                settle()
            turns[name].append(side.turn(args.seconds))
    program.close()
    return {"problem": case.name, "pass": "bwd" if case.backward else "fwd", "threads": threads, "dtype": case.dtype,
            "flops": 4 * case.d * ours.pairs, "kernels": go.kernels, "turns": turns, "refused": refused,
            "apart": {name: far for name, (_, far) in calls.items()}}


def merge(cell, more):
    """Add the turns of another run to a cell."""
    for name, turns in more["turns"].items():
        cell["turns"].setdefault(name, []).extend(turns)
    cell["kernels"] += more["kernels"]


def judge(cell):
    """Return the cell's times, its best peer and its ratios."""
    median = {name: statistics.median(t[0] for t in turns) for name, turns in cell["turns"].items()}
    least = {name: min(t[1] for t in turns) for name, turns in cell["turns"].items()}
    peers = {name: t for name, t in median.items() if name not in (FLASHKIT, FRESH)}
    if not peers:
        return None
    best = min(peers, key=peers.get)
    quick = min(least[name] for name in peers)
    return {"problem": cell["problem"], "pass": cell["pass"], "threads": cell["threads"], "dtype": cell["dtype"], "flops": cell["flops"],
            "kernel": " ".join(sorted(set(cell["kernels"]))), "best": best, "seconds": median[FLASHKIT], "peer": peers[best],
            "ratio": peers[best] / median[FLASHKIT], "fresh": peers[best] / median[FRESH], "least": quick / least[FLASHKIT]}


def mean(ratios):
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else math.nan


def classes(judged):
    """Yield a name and the cells of every class of the summary."""
    yield "all", judged
    for dtype in DTYPES:
        yield dtype, [x for x in judged if x["dtype"] == dtype]
    for low, high, name in SIZES:
        yield name, [x for x in judged if low <= x["flops"] < high]


def groups(found):
    """Yield threads, pass, class and the judged cells of the class."""
    judged = list(filter(None, map(judge, found["cells"])))
    for threads in sorted({x["threads"] for x in judged}):
        for p in PASSES:
            mine = [x for x in judged if x["threads"] == threads and x["pass"] == p]
            for name, some in classes(mine):
                if some:
                    yield threads, p, name, some


def summary(found):
    """Return the summary as text: ratios by class, how often a peer is best, and the cells below 1."""
    lines = [f"{found['machine']}; {', '.join(found['versions'])}; seed {found['seed']}",
             "ratio: the best peer's time over flashkit's. fresh: with outputs that each call allocates. fastest: of the fastest calls", "",
             f"{'threads':>7} {'pass':4} {'class':16} {'cells':>5} {'mean':>5} {'least':>5} {'<1':>3} {'<.85':>4}  {'fresh':>5} {'<1':>3}  {'fastest':>7} {'<1':>3}"]
    for threads, p, name, some in groups(found):
        ratio, fresh, least = ([x[key] for x in some] for key in ("ratio", "fresh", "least"))
        under = lambda values, limit=1: sum(x < limit for x in values)
        lines.append(f"{threads:7} {p:4} {name:16} {len(some):5} {mean(ratio):5.2f} {min(ratio):5.2f} {under(ratio):3} {under(ratio, 0.85):4}"
                     f"  {mean(fresh):5.2f} {under(fresh):3}  {mean(least):7.2f} {under(least):3}")
    for threads, p, name, some in groups(found):
        if name == "all":
            best = {x["best"] for x in some}
            count = sorted(((sum(x["best"] == peer for x in some), peer) for peer in best), reverse=True)
            lines += ["", f"{threads} threads, {p}: best peers " + ", ".join(f"{peer} {n}" for n, peer in count)]
            below = sorted((x for x in some if x["ratio"] < 1), key=lambda x: x["ratio"])
            lines += [f"  {'ratio':>5} {'fresh':>5} {'fastest':>7} {'us':>9} {'problem':47} {'kernel':18} best peer"] * bool(below)
            lines += [f"  {x['ratio']:5.2f} {x['fresh']:5.2f} {x['least']:7.2f} {x['seconds'] * 1e6:9.1f} {x['problem']:47} "
                      f"{x['kernel'].replace('simd/', ''):18} {x['best']} {x['peer'] * 1e6:.1f}" for x in below]
    alone = [f"{x['problem']} {x['pass']}" for x in found["cells"] if judge(x) is None]
    lines += ["", "no peer agrees with flashkit: " + ", ".join(alone)] * bool(alone)
    differ = sorted({f"{x['problem']} {x['pass']} {name}: {why}" for x in found["cells"] for name, why in x["refused"].items() if why.startswith("differs")})
    lines += ["", "peers that differ, which are not timed:", *("  " + x for x in differ)] * bool(differ)
    return "\n".join(lines) + "\n"


def table(args, found):
    """Write the table of docs/performance.md."""
    rows = []
    for threads, p, name, some in groups(found):
        ratio, fresh, least = ([x[key] for x in some] for key in ("ratio", "fresh", "least"))
        rows.append([str(threads), p, name, str(len(some)), f"{mean(ratio):.2f}", f"{min(ratio):.2f}", str(sum(x < 1 for x in ratio)),
                     f"{mean(least):.2f}", f"{mean(fresh):.2f}"])
    results.write(args.results, {
        "title": "Random problems", "question": "How fast is the Go API on random problems, compared with the fastest peer?",
        "machine": found["machine"], "date": found["date"], "peers": found["versions"], "repeat": [found["command"]], "rows": rows,
        "columns": ["threads", "pass", "problems", "cells", "mean ratio", "least", "below 1", "mean, fastest calls", "mean, new outputs"],
        "notes": ["Means are geometric. The last column's calls allocate flashkit's outputs."]})


def save(path, found):
    """Write all times to path; another process may read path at any time."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(found))
    part.replace(path)


def main():
    args = arguments()
    if args.summary:
        return report(args, json.loads(args.summary.read_text()))
    import cpu_peers

    cases = chosen(args)
    found = {"seed": args.seed, "count": len(cases), "date": results.today(), "machine": results.machine(),
             "command": results.command(), "versions": cpu_peers.versions(), "cells": []}
    print(f"{found['machine']}; {', '.join(found['versions'])}; seed {args.seed}", flush=True)
    cells = {}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(args.repeats):
            for i, fields in enumerate(cases):
                for threads in args.threads:
                    for p in args.passes:
                        case = cpu_peers.Case(**fields, backward=PASSES[p])
                        if i < args.start or args.only not in case.name:
                            continue
                        cell = measure(args, case, threads, args.seed + i, pathlib.Path(folder))
                        key = i, threads, p
                        if key in cells:
                            merge(cells[key], cell)
                        else:
                            cells[key] = cell
                            found["cells"].append(cell)
                        show(repeat, i, cells[key])
                if args.json:
                    save(args.json, found)
    return report(args, found)


def report(args, found):
    """Print the summary and write the table. Return an error, or None."""
    print(summary(found), end="")
    if args.results:
        table(args, found)
    return "no peer agrees with flashkit, see above" if any(judge(x) is None for x in found["cells"]) else None


def show(repeat, i, cell):
    x = judge(cell)
    start = f"{repeat} {i:3} {cell['threads']} {cell['pass']} {cell['problem']:47}"
    if x is None:
        print(f"{start} no peer agrees: {cell['refused']}", flush=True)
        return
    print(f"{start} {x['kernel']:19} {x['seconds'] * 1e6:10.1f} us {x['ratio']:5.2f} fresh {x['fresh']:5.2f} fastest {x['least']:5.2f} {x['best']}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
