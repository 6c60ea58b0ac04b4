"""Time every form of attention on the CPU: beside PyTorch, ONNX Runtime and ggml, and beside the plain form.

    make peers-forms
    python bench/peers/forms.py bin/peers-ours --parts short,masks --threads 1,2 --json forms.json
    python bench/peers/forms.py bin/peers-ours --parts ragged --only 'uniform.*f32 packed'
    python bench/peers/forms.py bin/peers-ours --parts costs --small --rounds 3

The parts are: short (sequences of 16 to 128, with a key mask and without), masks (masks and bias, both passes), ranges (ranges of keys, both passes), rare (softcap,
sinks, ALiBi, packed sequences), ragged (unequal lengths beside equal ones), costs (what features add to the plain call of the
same kernel), decode (pages, mixed types, a cache that grows), int8 (a cache in 8 bits). In each cell all sides are timed in one run, in turns, in another
order each round. A turn is the median of the calls of --seconds, one call if that takes longer; a side's time is the median of
its turns, its spread the distance of their quartiles as a fraction of that. Ours is called through dispatch, as a program does,
on the kernel that dispatch chooses. Inputs are random normal numbers.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import random
import re
import statistics
import sys
import tempfile
import time

import torch

import forms_cells
import forms_ggml
import forms_sides
import results
from forms_sides import Unable

LEGEND = """
time    median of the turns of a side, and the distance of their quartiles in percent of it
ratio   >= : the time of the best of the others over that of ours; <= : ours over the other, with equal work. The median of the
        ratios of the rounds, with their quartiles in brackets
verdict holds, or not, where both quartiles are on one side of what is asked and neither side's spread is above {spread:g} %; else open
error   max |x - float64| over the last head of the last sequence
apart   max |ours - peer| over all elements, for the peer that is nearest to float64
!       ours is farther from float64 than rounding excuses
"""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda s: s.split(",")
    parser.add_argument("ours", type=os.path.abspath, help="bench/peers/ours, built")
    parser.add_argument("--ggml", help="bench/peers/ggml.c as a library over ggml; without it ggml is left out")
    parser.add_argument("--parts", type=names, default=list(forms_cells.PARTS))
    parser.add_argument("--threads", type=lambda s: [int(x) for x in s.split(",")], default=sorted({1, os.cpu_count()}))
    parser.add_argument("--only", default="", help="cells whose part and name this regular expression finds")
    parser.add_argument("--kernel", default="", help="of ours, as dispatch.With takes it (default: what dispatch chooses)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a turn")
    parser.add_argument("--limit", type=float, default=60, help="seconds for all turns of a cell: slow sides are left out, rounds are fewer, but 3")
    parser.add_argument("--spread", type=float, default=0.25, help="of a side, beyond which there is no verdict")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--small", action="store_true", help="shorter sequences, to try the script")
    parser.add_argument("--list", action="store_true", help="print the cells and stop")
    parser.add_argument("--json", help="also write all results to this file, after every cell")
    return parser.parse_args()


class Session:
    """State that all sides of a cell share: the programs by number of threads, and the tensors of the cell."""

    def __init__(self, args, folder):
        self.args, self.folder, self.seed, self.kernel, self.limit = args, folder, args.seed, args.kernel, args.limit / 3
        self.programs, self.library = {}, forms_ggml.library(args.ggml)
        self.sides, self.plain, self.tensors = {}, {}, None

    def program(self, threads):
        if threads not in self.programs:
            self.programs[threads] = forms_sides.Program(self.args.ours, threads)
        return self.programs[threads]

    def ggml(self):
        if not self.library:
            raise Unable("not installed")
        return self.library

    def open(self, group):
        """Make the sides of a group. Return the reasons of the missing sides by label."""
        self.sides, self.plain = {}, {}
        self.tensors = group.form and group.form.tensors(self.seed)
        missing = {}
        for label, make in group.makers.items():
            try:
                self.sides[label] = make(self)
            except (Unable, ImportError) as reason:
                missing[label] = str(reason)
            except KeyError as other:
                missing[label] = f"without {other}"
        return missing

    def close(self):
        for side in {id(side): side for side in self.sides.values()}.values():
            side.close()
        self.sides, self.plain = {}, {}


def settle():
    """Wait until the threads that still spin after the last turn sleep."""
    for _ in range(50):
        before = time.process_time()
        time.sleep(0.01)
        if time.process_time() - before < 0.002:
            return


def measure(args, sides):
    """Return the times of each side's turns, and the sides dropped because they would exceed the time limit."""
    dropped = {}
    price = lambda: sum(max(side.first * (2 if side.first < args.seconds / 4 else 1), args.seconds) + 0.02 for side in sides.values())
    while sides and 3 * price() > args.limit:
        label = max(sides, key=lambda label: sides[label].first)
        dropped[label] = f"a call takes {sides[label].first:.3g} s"
        side = sides.pop(label)
        if side not in sides.values():  # a side may have two labels
            side.close()
    rounds = min(args.rounds, int(args.limit / price())) if sides else 0
    turns, order = {label: [] for label in sides}, list(sides)
    seen = {}
    for i in range(rounds):
        now = order[i % len(order):] + order[: i % len(order)]
        seen.clear()
        for label in now if i % 2 == 0 else reversed(now):
            side = sides[label]
            if id(side) not in seen:  # a side with two labels is measured once
                settle()
                seen[id(side)] = side.turn(args.seconds)
            turns[label].append(seen[id(side)])
    return turns, dropped


def summary(turns):
    """Return the lower quartile, the median and the upper quartile of the turns."""
    low, middle, high = statistics.quantiles(turns, n=4, method="inclusive")
    return low, middle, high


def judge(line, turns, widest):
    """Return the ratio of a line, its quartiles and its verdict, or None if a side is missing."""
    turns = dict(turns)
    for parts in [x for x in line.over if "+" in x]:
        if all(x in turns for x in parts.split("+")):
            turns[parts] = [sum(t) for t in zip(*(turns[x] for x in parts.split("+")))]
    others = [x for x in line.over if x in turns]
    if line.what not in turns or not others:
        return None
    best = min(others, key=lambda x: statistics.median(turns[x]))
    above, below = (best, line.what) if line.at_least else (line.what, best)
    low, ratio, high = summary([line.weight * a / b for a, b in zip(turns[above], turns[below])])
    if line.at_least:
        verdict = "holds" if low >= line.at_least else "not" if high < line.at_least else "open"
    else:
        verdict = "holds" if high <= line.at_most else "not" if low > line.at_most else "open"
    spread = lambda t: (t[2] - t[0]) / t[1]
    if max(spread(summary(turns[x])) for x in (best, line.what)) > widest:
        verdict = "open"
    return {"what": line.what, "over": best, "ratio": ratio, "low": low, "high": high, "at_least": line.at_least or None,
            "at_most": line.at_most or None, "verdict": verdict}


def compare(group, session):
    """Return the errors of all sides of a form, and the largest difference between ours and the most exact peer."""
    form, x = group.form, session.tensors
    if not form or "ours" not in session.sides:
        return {}
    exact = form.exact(x)
    values = {label: side.outputs() for label, side in session.sides.items()}
    largest = lambda pairs: max(float("inf") if t.isnan().any() else float(t.abs().max()) for t in pairs)
    errors = {}
    for label, v in values.items():
        head = form.head(v)
        errors[label] = largest([head[name].double() - exact[name] for name in exact if name in head])
    unit = {"f32": 2**-24, "f16": 2**-11, "bf16": 2**-8}[form.dtype] if not form.kv else 2**-24
    excused = 16 * unit * (4 if form.backward else 1) * max(4, form.d**0.5)
    peers = [label for label in errors if label != "ours"]
    alike = [errors[label] for label in peers if not label.startswith("ggml")]  # without ggml, which rounds masks and weights to 16 bits
    out = {"errors": errors, "wrong": not errors["ours"] <= max([excused] + [3 * e for e in alike if e < float("inf")])}
    if peers:
        near = min(peers, key=errors.get)
        out["apart"] = {near: largest([values["ours"][name] - values[near][name] for name in values[near] if name in values["ours"]])}
    return out


def run(args, group, session):
    """Measure a group and return its row."""
    row = {"part": group.part, "cell": group.name, "threads": group.threads, "load": os.getloadavg()[0]}
    row["missing"] = session.open(group)
    try:
        row.update(compare(group, session))
        for label, error in row.get("errors", {}).items():
            if label != "ours" and not error < 0.1:  # values have a magnitude of about 1
                row["missing"][label] = f"computes something else: it is {error:.1g} from float64"
                session.sides.pop(label).close()
        row["overhead"] = []
        for label, calls, grow, most in group.overhead:
            if label in session.sides:
                side = session.sides[label]
                try:
                    reply = side.program.ask(op="overhead", cell=side.cell, calls=calls, grow=grow, limit=args.limit)
                except Unable as reason:
                    row["missing"][f"overhead of {label}"] = str(reason)
                    row["overhead"].append({"what": label, "verdict": "missing"})
                    continue
                holds = reply.get("overhead", 0) <= most and reply.get("allocs", 0) < 0.01
                row["overhead"].append({"what": label, "kernel": reply["kernel"], "seconds": reply["seconds"], "overhead": reply.get("overhead", 0),
                                        "allocs": reply.get("allocs", 0), "calls": calls, "at_most": most, "verdict": "holds" if holds else "not"})
        turns, dropped = measure(args, session.sides) if group.lines else ({}, {})
        row["missing"] |= dropped
        row["kernels"] = {label: side.kernel for label, side in session.sides.items() if side.kernel}
        row["turns"] = turns
        row["lines"] = [judge(line, turns, args.spread) or {"what": line.what, "over": line.over, "verdict": "missing"} for line in group.lines]
    finally:
        session.close()
    return row


def seconds(x):
    for unit, size in (("s", 1), ("ms", 1e-3), ("us", 1e-6)):
        if x >= size or unit == "us":
            return f"{x / size:.3g} {unit}"


def table(row):
    """Return a row as text."""
    out = [f"{row['part']}: {row['cell']}, {row['threads']} thread{'s' * (row['threads'] > 1)}"]
    shown = []
    for label, turns in row["turns"].items():
        if turns in shown:  # a side with two labels is shown once
            continue
        shown.append(turns)
        low, middle, high = summary(turns)
        kernel, label = row["kernels"].get(label, ""), "plain" if label.startswith("plain of") else label
        error = f", error {row['errors'][label]:.1e}{'!' * (row['wrong'] and label == 'ours')}" if label in row.get("errors", {}) else ""
        apart = f", apart {row['apart'][label]:.1e}" if label in row.get("apart", {}) else ""
        out.append(f"    {label:22} {seconds(middle):>9} {100 * (high - low) / middle:4.1f} %{error}{apart}{'  ' * bool(kernel)}{kernel}")
    for line in row["lines"]:
        if line["verdict"] == "missing":
            out.append(f"  - {line['what']}: nothing to compare; " + "; ".join(f"{k}: {v}" for k, v in row["missing"].items())[:300])
            continue
        asked = f">= {line['at_least']:g}" if line["at_least"] else f"<= {line['at_most']:g}"
        out.append(f"  = {line['verdict']:5} {line['what']} / {line['over']}: {line['ratio']:.3f} [{line['low']:.3f}, {line['high']:.3f}] {asked}")
    for x in row["overhead"]:
        if x["verdict"] == "missing":
            out.append(f"  - overhead of {x['what']}: {row['missing']['overhead of ' + x['what']]}")
            continue
        out.append(f"  = {x['verdict']:5} {x['what']} {x['kernel']}: {seconds(x['overhead'])} a call beyond the kernel, of {seconds(x['seconds'])}, "
                   f"{x['allocs']:.4f} allocations, {x['calls']} calls; <= {seconds(x['at_most'])}")
    return "\n".join(out)


def versions(session):
    """Return the versions of the peers and the machine."""
    out = {"PyTorch": torch.__version__, "PyTorch CPU": torch.backends.cpu.get_cpu_capability(), "machine": platform.machine(), "cpus": os.cpu_count()}
    try:
        import onnxruntime

        out["ONNX Runtime"] = onnxruntime.__version__
    except ImportError:
        pass
    if session.library:
        out["ggml"] = session.library.attention_version().decode()
    cpu = results.processor()
    return out | ({"cpu": cpu} if cpu else {})


def main():
    args = arguments()
    groups = [g for threads in args.threads for part in args.parts for g in forms_cells.PARTS[part](args, threads)
              if re.search(args.only, f"{g.part} {g.name}")]
    if args.list:
        print(*(f"{g.part}: {g.name}, {g.threads} threads" for g in groups), sep="\n")
        return None
    rows, tally, wrong = [], {}, 0
    with tempfile.TemporaryDirectory() as folder:
        session = Session(args, pathlib.Path(folder))
        known = versions(session) | {"seed": args.seed, "rounds": args.rounds, "seconds": args.seconds, "date": datetime.date.today().isoformat()}
        print(LEGEND.format(spread=100 * args.spread), ", ".join(f"{name} {value}" for name, value in known.items()), "\n", sep="", flush=True)
        for group in groups:
            row = run(args, group, session)
            print(table(row), flush=True)
            rows.append(row)
            wrong += bool(row.get("wrong"))
            for x in row["lines"] + row["overhead"]:
                counts = tally.setdefault(row["part"], {})
                counts[x["verdict"]] = counts.get(x["verdict"], 0) + 1
            if args.json:
                pathlib.Path(args.json).write_text(json.dumps({"run": known, "rows": rows}, indent=1))
        for program in session.programs.values():
            program.close()
    for part, counts in tally.items():
        print(f"{part}: " + ", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items())))
    if wrong:
        return f"forms.py: values of {wrong} cells differ by more than rounding excuses, see !"
    return None


if __name__ == "__main__":
    sys.exit(main())
