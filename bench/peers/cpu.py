"""Time the CPU kernels beside the best of all CPU peers, and compare what they compute.

    make peers
    python bench/peers/cpu.py bin/flashrun --threads 1,2 --seq 1024,4096 --head-dim 64,128
    python bench/peers/cpu.py bin/flashrun --kernel auto,avx2,wasm/fwd_simd128 --pass fwd
    python bench/peers/cpu.py bin/flashrun --dtype bf16 --kernel amxbf16
    python bench/peers/cpu.py bin/flashrun --threads 16 --dtype f32,bf16 --results bench/results/cpu-16-cores.json
    taskset -c 0,1 python bench/peers/cpu.py bin/flashrun --no-peers

The kernel "auto" is the one that dispatch picks on this machine for the problem. Another one is named in full, or by its
variant: avx2 stands for simd/fwd_avx2 and simd/bwd_avx2. A kernel that this machine or problem has no use for shows as
a line with the reason.

For each problem, pass and number of threads the script runs our kernels and then the peers of cpu_peers.py, one after the
other, several rounds, and takes medians. The line shows the peer with the smallest median. All get the same random normal
numbers. GFLOP/s count the true area of the mask, and 2.5 times
the forward pass for the backward pass.
"""

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import numpy as np

import results

BATCH, HEADS = 1, 8
OUTPUTS = {"fwd": ["o"], "bwd": ["dq", "dk", "dv"]}
CHEAP = 2048  # the longest sequence that is also computed in float64, for the errors
LEGEND = """
ours, peer   GFLOP/s: medians; {rounds} rounds of {seconds} s
peak         ours as a fraction of the multiply-adds that the CPU does alone, in registers, with its best instructions
             for the type; AMX on float32, and the sandbox where no kernel beside it has vectors, can pass 1
ratio        GFLOP/s of ours over those of the peer: above 1, ours is faster
error        max |x - float64| of ours or of the peer, over the first head; of O forward, of dQ, dK and dV
             backward; not for more than {cheap} rows
apart        max |ours - peer| over all elements of the same outputs
best peer    the fastest call of {libraries} that agrees with ours
-            not measured: no peer is installed, or no float64
!            ours is farther from float64, or from the peer where that is not known, than rounding excuses
"""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda s: s.split(",")
    numbers = lambda s: [int(x) for x in s.split(",")]
    parser.add_argument("flashrun", type=os.path.abspath, help="the command: make build")
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--seq", type=numbers, default=[1024, 4096])
    parser.add_argument("--head-dim", type=numbers, default=[64, 128])
    parser.add_argument("--heads", type=int, default=HEADS)
    parser.add_argument("--pass", dest="passes", type=names, default=["fwd", "bwd"], help="fwd, bwd or both (default both)")
    parser.add_argument("--mask", type=names, default=["none", "causal"])
    parser.add_argument("--kernel", type=names, default=["auto"], help="kernels of ours, variants of them, or auto (default)")
    parser.add_argument("--dtype", dest="dtypes", type=names, default=["f32"], help="f32, bf16 or both")
    parser.add_argument("--no-peers", action="store_true", help="ours alone")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each measurement")
    parser.add_argument("--json", help="also write all results to this file")
    parser.add_argument("--results", dest="table", metavar="FILE", help="also write a table of docs/performance.md")
    parser.add_argument("--out", help="also write this file for flashrun report, which draws the peers beside ours; one number of threads")
    args = parser.parse_args()
    if unknown := set(args.dtypes) - {"f32", "bf16"}:
        parser.error(f"{', '.join(sorted(unknown))}: not one of f32, bf16")
    return args


class Problem:
    """A problem and its tensors: float32 numbers that the problem's type holds exactly."""

    def __init__(self, args, dtype, seq, dim, mask):
        self.heads, self.seq, self.dim, self.dtype, self.causal = args.heads, seq, dim, dtype, mask == "causal"
        self.name = f"b{BATCH}-h{self.heads}-g{self.heads}-n{seq}-m{seq}-d{dim}-{dtype}" + "-causal" * self.causal
        self.short = f"{seq}, {dim}, " + "causal, " * self.causal + dtype
        random = np.random.default_rng(1)
        self.tensors = {}
        for name in ("q", "k", "v", "do"):
            x = random.standard_normal((BATCH, self.heads, seq, dim), dtype=np.float32)
            if self.dtype == "bf16":  # round to bf16, to nearest even
                bits = x.view(np.uint32)
                x = ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
            self.tensors[name] = x

    def flops(self, backward):
        area = self.seq * (self.seq + 1) // 2 if self.causal else self.seq * self.seq
        return (2.5 if backward else 1) * 4 * BATCH * self.heads * area * self.dim

    def write(self, path):
        header, data = {}, b""
        for name, x in self.tensors.items():
            raw = (x.view(np.uint32) >> 16).astype("<u2").tobytes() if self.dtype == "bf16" else x.astype("<f4").tobytes()
            header[name] = {"dtype": {"bf16": "BF16", "f32": "F32"}[self.dtype], "shape": x.shape,
                            "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)

    def exact(self):
        """Return the outputs of the first head in float64."""
        q, k, v, do = (self.tensors[name][0, 0].astype(np.float64) for name in ("q", "k", "v", "do"))
        scale = self.dim ** -0.5
        s = q @ k.T * scale
        if self.causal:
            s[np.triu_indices(self.seq, 1)] = -np.inf
        p = np.exp(s - s.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        dp = do @ v.T
        ds = p * (dp - (p * dp).sum(axis=1, keepdims=True)) * scale
        return {"o": p @ v, "dq": ds @ k, "dk": ds.T @ q, "dv": p.T @ do}


def read(path):
    """Return the tensors of a safetensors file as float32."""
    blob = path.read_bytes()
    size = int.from_bytes(blob[:8], "little")
    tensors = {}
    for name, entry in json.loads(blob[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            raw = blob[8 + size + begin:8 + size + end]
            x = np.frombuffer(raw, "<f4") if entry["dtype"] == "F32" else (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
            tensors[name] = x.reshape(entry["shape"])
    return tensors


class Ours:
    """The command flashrun, with a number of threads and without a profile: dispatch predicts times."""

    def __init__(self, command, threads):
        self.command = command
        self.env = dict(os.environ, GOMAXPROCS=str(threads), FLASHKIT_PROFILE="off", FLASHKIT_BACKEND="", CUDA_VISIBLE_DEVICES="-1")

    def run(self, *arguments):
        done = subprocess.run([self.command, *arguments], env=self.env, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"flashrun {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def kernel(self, problem, p, wanted):
        """Return the full name of the wanted kernel, and the reason why it cannot run, "" if it can."""
        known = json.loads(self.run("explain", problem.name, "--json", "--pass", p))
        if wanted == "auto":
            return next(k["name"] for k in known if k["chosen"]), ""
        name = wanted if "/" in wanted else f"simd/{p}_{wanted}"
        for k in known:
            if k["name"] == name:
                return name, "" if "predicted_seconds" in k else k["reason"]
        return name, "there is no such kernel for this pass"

    def bench(self, problem, p, kernels, seconds):
        """Return the JSON of flashrun bench for the kernels."""
        return json.loads(self.run("bench", "--json", "--problem", problem.name, "--pass", p, "--backend", ",".join(kernels),
                                    "--kernels", "all", "--rounds", "1", "--time-per-case", f"{seconds}s"))

    def outputs(self, problem, p, kernel, folder):
        """Return the kernel's outputs."""
        problem.write(folder / "in.safetensors")
        self.run("run", "--in", str(folder / "in.safetensors"), "--out", str(folder / "out.safetensors"), "--backend", kernel,
                 "--repeat", "1", "--pass", "fwd,bwd" if p == "bwd" else "fwd", *["--causal"] * problem.causal)
        return {name: x for name, x in read(folder / "out.safetensors").items() if name in OUTPUTS[p]}


class Peers:
    """The calls of cpu_peers.py for a pass of a problem whose outputs agree with want, which are flashkit's."""

    def __init__(self, problem, p, threads, want):
        import torch

        import cpu_peers

        case = cpu_peers.Case(BATCH, problem.heads, problem.heads, problem.seq, problem.seq, problem.dim, problem.dtype,
                              backward=p == "bwd", band="causal" if problem.causal else "none")
        kind = {"f32": torch.float32, "bf16": torch.bfloat16}[problem.dtype]
        x = {name: torch.from_numpy(t).to(kind) for name, t in problem.tensors.items()}
        calls, self.refused = cpu_peers.open_peers(case, x, threads, {name: torch.from_numpy(t.copy()) for name, t in want.items()})
        self.calls, self.rounds, self.able = {name: call for name, (call, _) in calls.items()}, {name: [] for name in calls}, cpu_peers.able

    def measure(self, seconds):
        """Time a round. Later rounds leave out peers that are slow in the first round."""
        for name in self.able({name: statistics.median(rounds[0]) if rounds else 0 for name, rounds in self.rounds.items()}):
            self.rounds[name].append(self.calls[name].times(seconds))

    def best(self, rounds):
        """Return the name of the fastest peer in all rounds and its median time, or None and None."""
        medians = {name: statistics.median(map(statistics.median, r)) for name, r in self.rounds.items() if len(r) == rounds}
        name = min(medians, key=medians.get, default=None)
        return name, medians.get(name)

    def outputs(self, name):
        return {output: t.numpy() for output, t in self.calls[name].outputs().items()}


def result(ours, peer, rounds):
    """Return the times of a peer in the form of flashrun bench's results. ours is flashkit's result on the same problem."""
    times = [t for x in rounds for t in x]
    at = lambda fraction: float(np.quantile(times, fraction))
    rate = ours["seconds"] / at(.5)
    return {name: ours[name] for name in ("problem", "pass", "memory", "intensity")} | {
        "backend": "peer", "kernel": "peer/" + peer.lower().replace(" ", "-"), "calls": len(times), "seconds": at(.5),
        **{f"p{n}_seconds": at(n / 100) for n in (10, 25, 75, 90)}, "round_seconds": [statistics.median(x) for x in rounds],
        "gflops": ours["gflops"] * rate, "bytes_per_second": ours["bytes_per_second"] * rate}


def apart(x, y):
    """Return the largest difference between two sets of outputs; NaN if an output has a NaN."""
    return float(np.max([np.abs(x[name] - y[name]).max() for name in x]))


def error(x, exact):
    """Return the largest error of the first head, or None if there are no float64 outputs."""
    return exact and apart({name: values[0, 0] for name, values in x.items()}, exact)


def compare(args, problem, p, threads, folder):
    """Measure a pass of a problem; return a row for each of our kernels."""
    ours = Ours(args.flashrun, threads)
    kernels = {}
    for wanted in args.kernel:
        name, reason = ours.kernel(problem, p, wanted)
        kernels[name] = reason
    able = [name for name, reason in kernels.items() if not reason]
    mine = {name: ours.outputs(problem, p, name, folder) for name in able}
    peers = Peers(problem, p, threads, mine[able[0]]) if able and not args.no_peers else None
    rates = {}
    for _ in range(args.rounds if able else 0):
        found = ours.bench(problem, p, able, args.seconds)
        for k in found["results"]:
            rates.setdefault(k["kernel"], []).append(k["gflops"])
        rates.setdefault("peak", []).append(next(limit["gflops"] for limit in found["limits"] if limit["name"] == problem.dtype))
        if peers:
            peers.measure(args.seconds)
    best, seconds = peers.best(args.rounds) if peers else (None, None)
    if able:  # the file for flashrun report: flashkit's results of the last round, the best peer's results of all rounds
        results = found["results"] + ([result(found["results"][0], best, peers.rounds[best])] if best else [])
        args.results = {**found, **args.results, "results": args.results.get("results", []) + results}
    median = {name: statistics.median(x) for name, x in rates.items()}
    exact = problem.exact() if problem.seq <= CHEAP and able else None
    values = peers.outputs(best) if best else None
    rows = []
    for name, reason in kernels.items():
        row = {"problem": problem.name, "pass": p, "threads": threads, "kernel": name, "reason": reason}
        if not reason:
            row.update(gflops=median[name], peak=median["peak"], error=error(mine[name], exact), peer=best and {
                "name": best, "gflops": problem.flops(p == "bwd") / seconds / 1e9, "error": error(values, exact), "apart": apart(mine[name], values)})
            row["refused"] = peers.refused if peers else {}
            row["wrong"] = wrong(row, problem)
        rows.append(row)
    return rows


def wrong(row, problem):
    """Return whether the values differ by more than rounding errors. NaN counts as a difference."""
    unit = {"f32": 2**-24, "bf16": 2**-9}[problem.dtype]
    excused = 16 * unit * (1 if row["pass"] == "fwd" else 4) * max(4, problem.dim ** 0.5)
    peer = row["peer"]
    if row["error"] is not None:
        return not row["error"] <= max(excused, 3 * peer["error"] if peer else 0)
    return bool(peer) and not peer["apart"] <= 2 * excused


def line(args, row):
    number = lambda x, form: "-" if x is None else format(x, form)
    start = f"{row['problem']:37} {row['pass']:4} {row['threads']:7} {row['kernel']:19}"
    if row["reason"]:
        return f"{start} {row['reason']}"
    text = f"{start} {row['gflops']:7.1f} {row['gflops'] / row['peak']:5.2f} {number(row['error'], '.1e'):>7}{'!' if row['wrong'] else ' '}"
    if peer := row["peer"]:
        text += (f" {peer['gflops']:7.1f} {row['gflops'] / peer['gflops']:5.2f} {number(peer['error'], '.1e'):>7} {peer['apart']:7.1e}"
                 f"  {peer['name']}")
    return text


def cells(problem, row):
    """Return a row of the table of docs/performance.md."""
    line = [str(row["threads"]), problem.short, row["pass"], row["kernel"].removeprefix("simd/"), f"{row['gflops']:.0f}"]
    peer = row["peer"]
    return line + ([peer["name"], f"{peer['gflops']:.0f}", f"{row['gflops'] / peer['gflops']:.2f}"] if peer else ["", "", ""])


def main():
    args = arguments()
    args.results = {}
    if args.out and len(args.threads) > 1:
        raise SystemExit(f"--threads {args.threads}: one number for --out, as a report is of one machine")
    versions = []
    if not args.no_peers:
        import cpu_peers

        versions = cpu_peers.versions()
    print(LEGEND.format(rounds=args.rounds, seconds=args.seconds, cheap=CHEAP, libraries=", ".join(versions)))
    print(f"{'':70} {'GFLOP/s':>7} {'of':>5} {'max':>7}  {'GFLOP/s':>7} {'':5} {'max':>7} {'max':>7}")
    print(f"{'problem':37} {'pass':4} {'threads':>7} {'kernel':19} {'ours':>7} {'peak':>5} {'error':>7} "
          f" {'peer':>7} {'ratio':>5} {'error':>7} {'apart':>7}  best peer", flush=True)
    found, table = [], []
    with tempfile.TemporaryDirectory() as folder:
        for threads, dtype, seq, dim, mask in itertools.product(args.threads, args.dtypes, args.seq, args.head_dim, args.mask):
            problem = Problem(args, dtype, seq, dim, mask)
            for p in args.passes:
                for row in compare(args, problem, p, threads, pathlib.Path(folder)):
                    print(line(args, row), flush=True)
                    found.append(row)
                    if not row["reason"]:
                        table.append(cells(problem, row))
    if args.out:
        with open(args.out, "w") as f:
            json.dump(args.results, f)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(found, f, indent=1)
    if args.table:
        results.write(args.table, {
            "title": "CPU", "question": "How fast is attention, in GFLOP/s?", "machine": results.machine(),
            "peers": versions, "rows": table,
            "columns": ["threads", "T, D, mask, type", "pass", "kernel", "flashkit", "best peer", "its GFLOP/s", "ratio"],
            "notes": [f"Batch {BATCH}, {args.heads} heads. Medians of {args.rounds} rounds."]})
    if any(row.get("wrong") for row in found):
        return "cpu.py: values differ by more than rounding excuses, see !"


if __name__ == "__main__":
    sys.exit(main())
