"""Time the GPU kernels beside PyTorch's scaled_dot_product_attention, on the same problems and the same GPU.

examples:
    FLASHKIT_LIBRARY=bin/capi/libflashkit.so python bench/peers/gpu.py --groups all --random 20 --seed 7 --json groups.json
    python bench/peers/gpu.py --warm -- bin/flashrun bench --backend cuda --kernels all --memory device --dtype bf16 --json
    FLASHKIT_BENCH=b16-h16-g16-n1024-m1024-d128-bf16 python bench/peers/gpu.py --peers flash,cudnn --rounds 5 --json gpu.json \\
        -- bin/gpu/cuda.test -test.run '^$' -test.bench Device -test.benchtime 1x
    python bench/peers/gpu.py --pass forward --warm -- cat results.json

With --groups, calls of libflashkit on PyTorch's tensors take turns with all peers in one process, and every value is
compared: gpu_groups.py says how. That is what a user gets, over the shapes that users have.

With a command after --, kernels are timed by name. It prints the JSON of flashrun bench, of which the results on the device's memory count, or one object per line:
    {"problem": "b16-h16-g16-n1024-m1024-d128-bf16-causal", "kernel": "cuda/fwd_sm80", "pass": "forward", "ms": 0.41}
where ms is the median time on the device; other lines are left out. The kernel "chosen" is what a call without a
kernel's name takes, which "chosen" in the same object names: its rows come first, as that is what a program gets. Each
round runs the command and then times PyTorch's choice (default) and its flash, cuDNN, efficient and math backends on
the problems that it named: device events around each call, medians. Between calls a buffer larger than the L2 cache is
written (not with --warm). Ratios are the fastest peer's time over ours: above 1, ours is faster. FLOPs count the true
area of the mask, 2.5 times the forward pass for the backward pass. A peer that does not take a problem shows as "-".
The pass "loop" is forward in a loop of 1000 calls with one wait at the end: the time of a call by the host's clock. The
clock of the multiprocessors is read, never set.
"""

import argparse
import contextlib
import json
import math
import statistics
import subprocess
import sys
import threading
import time
import warnings

import gpu_groups
from gpu_peers import DTYPES, GROUP_PEERS, LAYOUT_PEERS, PEERS, Problem

PASSES = ["forward", "backward", "loop"]


def part(text):
    i, n = map(int, text.split("/"))
    if not 0 <= i < n:
        raise ValueError(text)
    return i, n


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda s: s.split(",")
    parser.add_argument("command", nargs="*", help="command that times our kernels, after --")
    parser.add_argument("--groups", type=names, help="all, or of " + ",".join(gpu_groups.groups()) + ",random,layouts")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="with --groups: so many problems more, drawn by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", type=part, metavar="I/N", help="with --groups: time nothing; call one cell of each kind once, of the Ith of N parts, so that compilers fill their caches on disk")
    parser.add_argument("--only", default="", metavar="PATTERN", help="with --groups: only problems whose name the pattern finds")
    parser.add_argument("--peers", type=names, help="default " + ",".join(PEERS) + "; with --groups " + ",".join(GROUP_PEERS + LAYOUT_PEERS))
    parser.add_argument("--pass", dest="passes", type=names, help="default all: " + ",".join(PASSES) + "; with --groups forward,backward,graph")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each measurement of a peer")
    parser.add_argument("--warm", action="store_true", help="leave the L2 cache as the call before left it")
    parser.add_argument("--json", help="also write all results to this file")
    parser.add_argument("--results", metavar="FILE", help="also write a table of docs/performance.md; with --groups one row a group")
    args = parser.parse_args()
    if bool(args.command) == bool(args.groups):
        parser.error("either --groups or a command")
    known_peers, known_passes = (GROUP_PEERS + LAYOUT_PEERS, ["forward", "backward", "graph"]) if args.groups else (list(PEERS), PASSES)
    args.peers, args.passes = args.peers or known_peers, args.passes or known_passes
    for given, known in ((args.peers, known_peers), (args.passes, known_passes)):
        if unknown := set(given) - set(known):
            parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(known)}")
    return args


class Clock:
    """A context manager that reads the clock of the multiprocessors ten times a second."""

    def __init__(self, gpu):
        self.gpu, self.seen = gpu, []

    def __enter__(self):
        command = ["nvidia-smi", "-i", self.gpu, "--query-gpu=clocks.sm", "--format=csv,noheader,nounits", "-lms", "100"]
        try:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except FileNotFoundError:
            self.process = None
            return self
        self.reader = threading.Thread(target=lambda: self.seen.extend(int(x) for x in self.process.stdout if x.strip().isdigit()))
        self.reader.start()
        return self

    def __exit__(self, *_):
        if self.process:
            self.process.terminate()
            self.process.wait()
            self.reader.join()

    def __str__(self):
        if not self.seen:
            return "not known"
        return f"{min(self.seen)} to {max(self.seen)}, median {statistics.median(self.seen):.0f} MHz"


def ours(args):
    """Run the command. Return {(problem, pass, kernel): ms} and {(problem, pass): chosen kernel}."""
    out = subprocess.run(args.command, check=True, stdout=subprocess.PIPE, text=True).stdout
    times, chosen = {}, {}
    for line in out.splitlines():
        if not line.lstrip().startswith("{"):
            continue
        found = json.loads(line)
        rows = [dict(r, ms=r["seconds"] * 1e3) for r in found["results"] if r["memory"] == "device"] if "results" in found else [found]
        for row in rows:
            if row["pass"] in args.passes:
                times[row["problem"], row["pass"], row["kernel"]] = row["ms"]
                if row.get("chosen"):
                    chosen[row["problem"], row["pass"]] = row["chosen"]
    return times, chosen


def timed(torch, call, seconds, flush):
    """Return the median device time of a call in milliseconds, or None if the peer does not support the call."""
    event = lambda: torch.cuda.Event(enable_timing=True)

    def run(count):
        pairs = [(event(), event()) for _ in range(count)]
        for start, end in pairs:
            if flush is not None:
                flush.zero_()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in pairs]

    try:
        once = statistics.median(run(4)[1:])
    except RuntimeError:  # there is no kernel, or not enough memory
        torch.cuda.empty_cache()
        return None
    return statistics.median(run(max(5, int(seconds * min(2000, 1e3 / once)))))


def looped(torch, call, calls=1000):
    """Return the median time of a call in a loop in milliseconds, or None if the peer does not support the call."""
    seconds = []
    for _ in range(15):
        start = time.perf_counter()
        try:
            for _ in range(calls):
                call()
        except RuntimeError:
            return None
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e3 / calls


def peers(torch, args, name, passes, flush):
    """Return {(pass, peer): ms} of PyTorch's backends on a problem."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    p, times = Problem(name), {}
    new = lambda heads, rows, dim: torch.randn(p.batch, heads, rows, dim, device="cuda", dtype=getattr(torch, DTYPES[p.dtype]))
    try:
        q, k, v = new(p.heads, p.q_len, p.dim), new(p.kv_heads, p.kv_len, p.dim), new(p.kv_heads, p.kv_len, p.v_dim)
        options = dict(p.mask(torch), scale=p.scale, enable_gqa=p.heads != p.kv_heads)
    except torch.OutOfMemoryError:
        return times
    attention = lambda: scaled_dot_product_attention(q, k, v, **options)
    for peer in args.peers:
        with sdpa_kernel(getattr(SDPBackend, PEERS[peer])) if PEERS[peer] else contextlib.nullcontext():
            if "forward" in passes:
                with torch.no_grad():
                    times["forward", peer] = timed(torch, attention, args.seconds, flush)
            if "loop" in passes:
                with torch.no_grad():
                    times["loop", peer] = looped(torch, attention)
            if "backward" in passes:
                for x in (q, k, v):
                    x.requires_grad_()
                try:
                    o = attention()
                    do = torch.randn_like(o)
                    call = lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True)
                    times["backward", peer] = timed(torch, call, args.seconds, flush)
                except RuntimeError:
                    torch.cuda.empty_cache()
                o = do = call = None
                for x in (q, k, v):
                    x.requires_grad_(False)
    return {key: ms for key, ms in times.items() if ms}


def measure(torch, args, flush):
    """Run all rounds. Return {(problem, pass, kernel or peer): median ms}, the keys of our kernels, and the chosen kernels."""
    times, kernels = {}, []
    for number in range(args.rounds):
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
        found, chosen = ours(args)
        for key, ms in found.items():
            if key not in times:
                kernels.append(key)
            times.setdefault(key, []).append(ms)
        for name in dict.fromkeys(problem for problem, _, _ in found):
            passes = {p for problem, p, _ in found if problem == name}
            for (p, peer), ms in peers(torch, args, name, passes, flush).items():
                times.setdefault((name, p, peer), []).append(ms)
        torch.cuda.empty_cache()
    kernels.sort(key=lambda key: key[2] != "chosen")  # dispatch's choice first
    return {key: statistics.median(ms) for key, ms in times.items()}, kernels, chosen


def table(args, times, kernels, chosen):
    """Print a row for each of our kernels, then the geometric means of the ratios; return the rows."""
    label = lambda problem, p, kernel: f"{kernel}: {chosen[problem, p]}" if kernel == "chosen" else kernel
    wide = max([len(problem) for problem, _, _ in kernels] + [7])
    kind = max([len(label(*key)) for key in kernels] + [6])
    print(f"{'problem':{wide}} {'pass':8} {'kernel':{kind}} {'ms':>9} {'TFLOP/s':>8}"
          + "".join(f" {peer:>9}" for peer in args.peers) + f" {'ratio':>6}")
    rows, ratios = [], {}
    for problem, p, kernel in kernels:
        ms = times[problem, p, kernel]
        row = {"problem": problem, "pass": p, "kernel": kernel, "ms": ms,
               "tflops": Problem(problem).flops(p == "backward") / ms / 1e9,
               "peers": {peer: times[problem, p, peer] for peer in args.peers if (problem, p, peer) in times}}
        if kernel == "chosen":
            row["chosen"] = chosen[problem, p]
        line = f"{problem:{wide}} {p:8} {label(problem, p, kernel):{kind}} {ms:9.4f} {row['tflops']:8.1f}"
        line += "".join(f" {row['peers'][peer]:9.4f}" if peer in row["peers"] else f" {'-':>9}" for peer in args.peers)
        if row["peers"]:
            row["ratio"] = min(row["peers"].values()) / ms
            line += f" {row['ratio']:6.3f}"
            ratios.setdefault((p, kernel), []).append(row["ratio"])
        print(line)
        rows.append(row)
    for (p, kernel), x in ratios.items():
        print(f"geometric mean, {p}, {kernel}: {math.exp(statistics.fmean(map(math.log, x))):.3f} of {len(x)} problems, least {min(x):.3f}")
    return rows


def performance(torch, args, rows):
    """Write the table of docs/performance.md."""
    import results  # bench/peers/results.py

    cudnn = torch.backends.cudnn.version() or 0
    versions = [f"PyTorch {torch.__version__.partition('+')[0]}", f"cuDNN {cudnn // 10000}.{cudnn // 100 % 100}"]
    about = {"machine": torch.cuda.get_device_name(0), "peers": versions}
    if args.groups:
        about["peers"] += results.versions(("cuDNN frontend", "nvidia-cudnn-frontend"), ("FlashAttention-4", "flash-attn-4"))
        about |= {"title": "Groups of shapes", "question": "A ratio is the peer's time over flashkit's.", "columns": gpu_groups.COLUMNS, "rows": gpu_groups.table(rows)}
    else:
        number = lambda x, form: "" if x is None else format(x, form)
        shown = {"flash": "PyTorch", "cudnn": "cuDNN"}
        about |= {"title": "GPU", "question": "How fast is attention, in milliseconds?",
                  "columns": ["problem", "pass", "kernel", "flashkit", "TFLOP/s", *shown.values(), "ratio"],
                  "rows": [[row["problem"], row["pass"], row.get("chosen", row["kernel"]).removeprefix("cuda/"), f"{row['ms']:.4f}", f"{row['tflops']:.1f}",
                            *(number(row["peers"].get(peer), ".4f") for peer in shown), number(row.get("ratio"), ".3f")] for row in rows]}
    results.write(args.results, about)


def main():
    args = arguments()
    try:
        import torch
    except ImportError:
        return "gpu.py: PyTorch is not installed"
    if not torch.cuda.is_available():
        return "gpu.py: PyTorch finds no GPU"
    torch.backends.cuda.matmul.allow_tf32 = False
    warnings.simplefilter("ignore", UserWarning)  # warnings of PyTorch about why a backend does not support a problem
    properties = torch.cuda.get_device_properties(0)
    gpu = str(properties.uuid)
    flush = None if args.warm and not args.groups else torch.empty(max(256 << 20, 4 * properties.L2_cache_size), dtype=torch.int8, device="cuda")
    versions = f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
    with Clock(gpu if gpu.startswith("GPU-") else "GPU-" + gpu) as clock:
        if args.groups:
            right, rows = gpu_groups.run(torch, args, flush)
        else:
            times, kernels, chosen = measure(torch, args, flush)
    if args.groups:
        print(f"{properties.name}, {versions}, L2 cold; clock {clock}")
        if args.results and rows:
            performance(torch, args, rows)
        return 0 if right else "gpu.py: a value is wrong"
    if not kernels:
        return "gpu.py: the command printed no result of the passes asked for"
    print(f"{properties.name}, {versions}, {args.rounds} rounds, L2 {'warm' if args.warm else 'cold'}; clock {clock}")
    rows = table(args, times, kernels, chosen)
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"gpu": properties.name, "versions": versions, "rounds": args.rounds, "warm": args.warm,
                       "clock": str(clock), "rows": rows}, f, indent=1)
    if args.results:
        performance(torch, args, rows)


if __name__ == "__main__":
    sys.exit(main())
