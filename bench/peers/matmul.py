"""Time products of matrices in float32: ours beside PyTorch and the OpenBLAS of NumPy.

    make peers-matmul
    python bench/peers/matmul.py bin/peers-product --threads 1 --only 384x1536 --rounds 3

C = A B, A [M, K], weights B [K, N]. Ours packs B once, as a program does with weights; the others get it as it lies: mm is
torch.mm, linear is torch.nn.functional.linear with weights [N, K] and a bias, numpy is numpy.matmul into an array. In each
cell all sides are timed in turns, in another order each round. A turn is the median of the calls of --seconds; a side's rate
is that of the median of its turns, in GFLOP/s. best is the rate of the fastest call of all, which shows what a side can do
where others keep the processors busy. peak is what multiply-adds alone do, in registers: the best of all measurements.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

WEIGHTS = [(384, 384), (384, 1536), (1536, 384), (768, 3072), (1024, 1024), (4096, 4096)]
ROWS = [8, 32, 128, 512, 2048]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda s: [int(x) for x in s.split(",")]
    parser.add_argument("ours", type=os.path.abspath, help="bench/peers/product, built")
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--rows", type=numbers, default=ROWS, help="M")
    parser.add_argument("--only", default="", help="weights, such as 384x1536,1024x1024")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a turn")
    parser.add_argument("--limit", type=float, default=30, help="seconds for all turns of a cell: rounds are fewer then, but 3")
    parser.add_argument("--bf16", action="store_true", help="also time bf16: of ours weights alone (bf16w), and all; of torch.mm (torch16)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**31)
    parser.add_argument("--json", help="also write all results to this file, after every cell")
    return parser.parse_args()


def environment(threads):
    """Return an environment that limits every library to the number of threads, without the variables that slow OpenBLAS down."""
    env = {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")}
    return dict(env, GOMAXPROCS=str(threads), OPENBLAS_NUM_THREADS=str(threads), OMP_NUM_THREADS=str(threads))


class Ours:
    """A process of bench/peers/product."""

    def __init__(self, command):
        self.process = subprocess.Popen([command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        reply = json.loads(line) if line else {"error": "it ended"}
        if "error" in reply:
            raise SystemExit(f"ours {request}: {reply['error']}")
        return reply

    def turn(self, seconds, bias=False):
        reply = self.ask(op="time", seconds=seconds, bias=bias)
        return reply["median"], reply["best"]


def turn(call, seconds):
    """Return the median and the least time of repeated calls in seconds."""
    call()
    times, begin = [], time.perf_counter()
    while not times or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times), min(times)


def settle():
    """Wait until the threads that still spin after the last turn sleep."""
    for _ in range(50):
        before = time.process_time()
        time.sleep(0.01)
        if time.process_time() - before < 0.002:
            return


def cell(args, ours, folder, m, k, n):
    """Time the sides of a cell in turns. Return rates by side, and errors."""
    import numpy
    import torch

    random = numpy.random.default_rng([args.seed, m, k, n])
    a, b, bias = (random.standard_normal(shape, dtype=numpy.float32) for shape in ((m, k), (k, n), (n,)))
    path = folder / "in"
    path.write_bytes(a.tobytes() + b.tobytes() + bias.tobytes())
    forms = [ours[0]] if not args.bf16 else ours
    for precision, form in enumerate(forms):
        form.ask(op="open", file=str(path), m=m, k=k, n=n, precision=precision)
    x, y, w, v = torch.from_numpy(a), torch.from_numpy(b), torch.from_numpy(b.T.copy()), torch.from_numpy(bias)
    out, result = torch.empty(m, n), numpy.empty((m, n), numpy.float32)
    calls = {
        "mm": lambda: torch.mm(x, y, out=out),
        "linear": lambda: torch.nn.functional.linear(x, w, v),
        "numpy": lambda: numpy.matmul(a, b, out=result),
    }
    sides = {"ours": lambda s: ours[0].turn(s), "ours+bias": lambda s: ours[0].turn(s, True)}
    if args.bf16:
        x16, y16 = x.bfloat16(), y.bfloat16()
        sides |= {"bf16w": lambda s: ours[1].turn(s), "bf16": lambda s: ours[2].turn(s)}
        calls["torch16"] = lambda: torch.mm(x16, y16)
    sides |= {name: lambda s, call=call: turn(call, s) for name, call in calls.items()}
    turns, best, order = {name: [] for name in sides}, dict.fromkeys(sides, float("inf")), list(sides)
    begin = time.perf_counter()
    with torch.inference_mode():
        for i in range(args.rounds):
            if i >= 3 and (time.perf_counter() - begin) * (i + 1) / i > args.limit:
                break
            for name in order[i % len(order):] + order[: i % len(order)]:
                settle()
                median, least = sides[name](args.seconds)
                turns[name].append(median)
                best[name] = min(best[name], least)
    flops = 2e-9 * m * k * n
    got = {name: {"rate": flops / statistics.median(t), "best": flops / best[name], "turns": t} for name, t in turns.items()}
    return got, errors(a, b, ours[0], folder, {"mm": calls["mm"]().numpy(), "numpy": calls["numpy"]()})


def errors(a, b, ours, folder, others):
    """Return {side: largest error in some rows}, and the largest difference between ours and another side. Both are relative to the largest sum of magnitudes."""
    import numpy

    ours.turn(0)
    ours.ask(op="save", file=str(folder / "out"))
    c = numpy.fromfile(folder / "out", numpy.float32).reshape(a.shape[0], b.shape[1])
    (folder / "out").unlink()  # the program does not replace an existing file
    rows = slice(0, min(len(a), 8))
    exact, size = a[rows].astype(float) @ b.astype(float), (abs(a[rows]).astype(float) @ abs(b)).max()
    far = {name: float(abs(x[rows] - exact).max() / size) for name, x in {"ours": c, **others}.items()}
    return far, max(float(abs(c - x).max() / size) for x in others.values())


def measure(args):
    """Measure all cells in this process, whose environment already limits the threads."""
    import torch

    threads = args.threads[0]
    torch.set_num_threads(threads)
    ours, results, peak = [Ours(args.ours) for _ in range(3 if args.bf16 else 1)], [], 0
    with tempfile.TemporaryDirectory() as folder:
        for k, n in WEIGHTS:
            if args.only and f"{k}x{n}" not in args.only.split(","):
                continue
            for m in args.rows:
                settle()
                peak = max(peak, ours[0].ask(op="peak")["peak"] / 1e9)
                got, (far, apart) = cell(args, ours, pathlib.Path(folder), m, k, n)
                results.append({"threads": threads, "m": m, "k": k, "n": n, "peak": peak, "sides": got, "errors": far, "apart": apart})
                show(results[-1])
                if args.json:
                    pathlib.Path(args.json).write_text(json.dumps(results))


def show(r):
    """Print a cell: the rates, the ratio of ours to the peak and to the best other side, each by medians and by fastest calls."""
    others = ("mm", "linear", "numpy")
    rate, best = ({name: s[key] for name, s in r["sides"].items()} for key in ("rate", "best"))
    line = f"{r['threads']} {r['k']:>4}x{r['n']:<4} {r['m']:>4} "
    line += " ".join(f"{rate[name]:6.1f} {best[name]:6.1f}" for name in ("ours", "ours+bias", *others))
    line += f" | {rate['ours'] / r['peak']:5.2f} {best['ours'] / r['peak']:5.2f}"
    line += f" | {rate['ours'] / max(rate[x] for x in others):5.2f} {best['ours'] / max(best[x] for x in others):5.2f}"
    if "bf16" in rate:
        line += " | " + " ".join(f"{rate[name]:6.1f} {best[name]:6.1f}" for name in ("bf16w", "bf16", "torch16"))
    print(line + f" | {r['errors']['ours']:.1e} {r['errors']['mm']:.1e} {r['errors']['numpy']:.1e} {r['apart']:.1e}", flush=True)


def main():
    args = arguments()
    if len(args.threads) == 1 and os.environ.get("OPENBLAS_NUM_THREADS") == str(args.threads[0]) and "OPENBLAS_CORETYPE" not in os.environ:
        return measure(args)
    print(f"{platform.platform()}, {os.cpu_count()} processors, seed {args.seed}. GFLOP/s: median and best of each side;")
    print("ours of the peak, ours over the best of the others, by median and best; errors of ours, mm, numpy; ours apart from them")
    print("threads, weights, M   ours          ours+bias     mm            linear        numpy")
    for threads in args.threads:
        command = [sys.executable, *sys.argv, "--threads", str(threads), "--seed", str(args.seed)]
        if args.json and len(args.threads) > 1:
            command += ["--json", f"{args.json}.{threads}"]
        subprocess.run(command, env=environment(threads), check=True)


if __name__ == "__main__":
    main()
