"""gpu.py --groups: the time of a call of libflashkit on PyTorch's tensors, in turns with peers in the same process.

flashkit.attention chooses the kernel, writes LSE, and sums gradients in a fixed order. "any" is flashkit with dQ summed in
any order, like the peers' dQ. gpu_peers.py describes the peers. All sides get the same tensors of normal numbers and the same
stream. They take short turns in shuffled order, so that changes of clock and power affect all sides alike. Every call is
timed by events, after the L2 cache was flushed. If calls are short, the device waits until all calls of a turn are
enqueued, so that the interpreter's time does not count. The pass "graph" is the forward pass in a CUDA graph of 20 calls,
with a warm cache.

gpu_layouts.py and gpu_forms.py describe the groups packed, paged, forms and ranges, which have their own peers.

Every result is compared with float64 on rows of the last head; outputs are filled with NaN before. The error of flashkit
must be at most 1.5 times the largest error of a peer, or four rounding errors of the type. Otherwise the cell is marked
WRONG, and the exit status is 1. A ratio is the fastest peer's time over flashkit's: above 1, flashkit is faster.
"""

import copy
import gc
import json
import math
import random
import re
import statistics
import time

import gpu_forms
import gpu_layouts
import gpu_peers

ROUNDING = {"f32": 2**-24, "f16": 2**-11, "bf16": 2**-8}


def name(b, h, g, n, m, d, mask="", dv=None, dtype="bf16"):
    return f"b{b}-h{h}-g{g}-n{n}-m{m}-d{d}" + (f"-dv{dv}" if dv and dv != d else "") + f"-{dtype}" + (f"-{mask}" if mask else "")


def groups():
    """Return {group: [(problem, passes)]}."""
    one, both, graph, masks = ("forward",), ("forward", "backward"), ("graph",), ("", "causal")
    square = lambda d, of, dtype="bf16": [(name(16384 // t, 2048 // d, 2048 // d, t, t, d, mask, dtype=dtype), of) for t in (1024, 4096, 16384) for mask in masks]
    all_ = {f"square-d{d}": square(d, both) for d in (64, 128, 256)}
    all_["gqa"] = [(name(b, h, g, t, t, 128, "causal"), both) for b, h, g, t in (
        (1, 32, 8, 1024), (1, 32, 8, 2048), (1, 32, 8, 4096), (8, 32, 8, 1024), (1, 64, 8, 1024), (1, 64, 8, 4096), (4, 32, 1, 2048))]
    all_["mla"] = [(name(1, 128, 128, 4096, 4096, 192, "causal", 128), both), (name(4, 16, 16, 2048, 2048, 192, "causal", 128), both),
                   (name(1, 128, 128, 1024, 8192, 192, "causal", 128), one), (name(4, 16, 16, 4096, 4096, 192, "causal"), both)]
    all_["short"] = [(name(64, 16, 16, t, t, d, mask), both) for t in (128, 256, 512) for d in (64, 128) for mask in masks]
    all_["few"] = [(name(1, 16, 16, t, t, 128, mask), both) for t in (512, 2048) for mask in masks]
    all_["few"] += [(name(1, 12, 12, 1024, 1024, 64, "causal"), both), (name(1, 8, 8, 2048, 2048, 64), both), (name(2, 8, 8, 1024, 1024, 128), both)]
    all_["chunk"] = [(name(1, 32, 8, n, m, 128, "causal"), one) for n, m in ((65, 8192), (128, 8192), (512, 4096), (512, 32768), (256, 131072))]
    all_["cross"] = [(name(2, 10, 10, 4096, 77, 64), both), (name(8, 16, 16, 4096, 77, 128), both), (name(8, 8, 8, 4096, 77, 80), one),
                     (name(4, 16, 16, 448, 1500, 64), one), (name(64, 12, 12, 197, 197, 64), both), (name(64, 16, 16, 257, 257, 80), both),
                     (name(32, 16, 16, 729, 729, 72), both)]
    all_["ragged"] = [(name(4, 16, 16, t, t, d, mask), both) for t in (1000, 3001) for d in (64, 128) for mask in masks]
    all_["window"] = [(name(1, 16, 16, t, t, 128, f"window{w}.0"), of) for t, w, of in ((16384, 1023, both), (16384, 4095, both), (32768, 1023, one))]
    all_["decode"] = [(name(b, h, g, n, m, 128), one) for b, h, g, n, m in (
        (1, 32, 8, 1, 4096), (1, 32, 8, 1, 32768), (16, 32, 8, 1, 4096), (64, 32, 8, 1, 8192), (64, 64, 8, 1, 8192), (64, 32, 1, 1, 8192), (8, 32, 8, 4, 8192))]
    all_["graph"] = [(name(b, h, g, n, m, d, mask), graph) for b, h, g, n, m, d, mask in (
        (4, 8, 8, 128, 128, 64, ""), (4, 8, 8, 1024, 1024, 64, ""), (1, 12, 12, 128, 128, 64, "causal"), (1, 32, 8, 512, 512, 128, "causal"),
        (1, 32, 8, 1, 1024, 128, ""), (1, 32, 8, 1, 8192, 128, ""), (16, 32, 8, 1, 4096, 128, ""))]
    all_["f16"] = [(name(4, 16, 16, 4096, 4096, d, mask, dtype="f16"), both) for d in (64, 128) for mask in masks]
    all_["f32"] = [(name(2, 8, 8, 4096, 4096, d, mask, dtype="f32"), both) for d in (64, 128) for mask in masks] + [(name(4, 8, 8, 1000, 1000, 64, dtype="f32"), both)]
    ways = {gpu_layouts.Packed: both, gpu_layouts.Paged: one, gpu_forms.Form: both}
    for group, cells in (("packed", gpu_layouts.packed_cells()), ("paged", gpu_layouts.paged_cells()), ("forms", gpu_forms.form_cells()), ("ranges", gpu_forms.range_cells())):
        all_[group] = [(c, ways[type(c)]) for c in cells]
    return all_


def drawn(seed, count):
    """Return random shapes, for which no kernel was tuned: grouped heads, short, cross, few blocks, decode, unusual head dims."""
    r = random.Random(seed)
    whole = lambda least, most: int(least * math.exp(r.random() * math.log(most / least)))
    cells = []
    for i in range(count):
        n, g = whole(256, 8192), 2 ** r.randrange(6)
        d, mask = r.choice((32, 64, 64, 72, 80, 96, 128, 128, 128, 160, 192, 256)), r.choice(("", "causal"))
        shape = ((whole(1, 8), 32, g, n, n), (whole(16, 128), 16, 16, n // 16, n // 16), (whole(1, 8), 16, 16, n, whole(32, 2048)),
                 (1, 8, 8, n // 2, n // 2), (whole(1, 32), 32, g, whole(1, 512), whole(512, 32768)))[i % 5]
        cells.append((name(*shape, d, mask), ("forward",) if i % 5 == 4 else ("forward", "backward")))
    return cells


class Turns:
    """Times calls in turns."""

    def __init__(self, torch, flush, budget):
        self.torch, self.flush, self.budget = torch, flush, budget

    def enqueue(self, call, count, hold):
        event = lambda: self.torch.cuda.Event(enable_timing=True)
        pairs = [(event(), event()) for _ in range(count)]
        if hold:
            self.torch.cuda._sleep(hold)  # hold is in GPU clocks: the calls below are enqueued before the sleep ends
        for start, end in pairs:
            self.flush.zero_()
            start.record()
            call()
            end.record()
        return pairs

    def median(self, calls):
        """Return {name: milliseconds} of {name: call}, without calls that fail."""
        sizes, times, holds = {}, {}, {}
        for key, call in calls.items():
            try:
                self.enqueue(call, 1, 0)
                began = time.perf_counter()
                pairs = self.enqueue(call, 3, 2_000_000)
                host = (time.perf_counter() - began) / 3 * 1e3  # host time of a call in milliseconds
                self.torch.cuda.synchronize()
            except (RuntimeError, ValueError, TypeError, AssertionError, NotImplementedError):
                continue
            once = min(start.elapsed_time(end) for start, end in pairs)
            sizes[key], times[key] = (max(1, min(16, int(4 / once))), once), []
            holds[key] = max(4_000_000 if once < 0.5 else 0, min(40_000_000, int(2.4e6 * host * sizes[key][0])) if host > 0.7 * once else 0)
        if not sizes:
            return {}
        turns = max(3, min(10, int(self.budget / max(count * once for count, once in sizes.values()))))
        for _ in range(turns):
            order, pairs = random.sample(list(sizes), len(sizes)), {}
            for key in order:
                pairs[key] = self.enqueue(calls[key], sizes[key][0], holds[key])
            self.torch.cuda.synchronize()
            for key in order:
                times[key] += [start.elapsed_time(end) for start, end in pairs[key]]
        return {key: statistics.median(x) for key, x in times.items()}

    def graphs(self, calls, count=20):
        """Return {name: milliseconds per call} of CUDA graphs of `count` calls, replayed with a warm cache."""
        torch, times = self.torch, {}
        for key, call in calls.items():
            side = torch.cuda.Stream()
            try:
                with torch.cuda.stream(side):
                    call()
                    side.synchronize()
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph, stream=side):
                        for _ in range(count):
                            call()
                    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    took = []
                    for _ in range(25):
                        start.record()
                        graph.replay()
                        end.record()
                        end.synchronize()
                        took.append(start.elapsed_time(end) / count)
            except (RuntimeError, ValueError, TypeError, AssertionError):
                continue
            times[key] = statistics.median(took[5:])
        return times


def judge(p, errors):
    """Return whether flashkit's errors are small enough compared with the peers' errors, and flashkit's error."""
    ours = [errors.pop(key) for key in list(errors) if key.startswith("flashkit")]
    most = max([4 * ROUNDING[p.dtype], *(1.5 * e for e in errors.values() if e == e)])
    return all(e <= most for e in ours), ours[0]


def calls_of(torch, problem, way, args):
    """Return a problem, its calls, the factors of their times, and a function that returns their errors."""
    back = way == "backward"
    if not isinstance(problem, str):
        problem = copy.copy(problem)  # a copy, so that the tensors are freed with it
        calls, results, scales = problem.calls(torch, way, [x for x in problem.peers if x in args.peers])
        return problem, calls, scales, lambda: problem.errors(torch, results, back)
    p = gpu_peers.Problem(problem)
    x = gpu_peers.tensors(torch, p)
    calls, results = (gpu_peers.backward if back else gpu_peers.forward)(torch, p, x, [x for x in args.peers if x in gpu_peers.GROUP_PEERS])
    return p, calls, {}, lambda: gpu_peers.errors(torch, p, x, results, back)


def cell(torch, turns, problem, way, args):
    """Time and compare one pass of a problem; return a row of the table."""
    p, calls, scales, compare = calls_of(torch, problem, way, args)
    errors = compare()
    compare = None
    right, error = judge(p, errors)
    times = turns.graphs(calls) if way == "graph" else turns.median(calls)
    ours = times.pop("flashkit", None)
    beside = {key.partition("-")[2]: times.pop(key) * scales.get(key, 1) for key in list(times) if key.startswith("flashkit-")}
    row = {"problem": str(problem), "pass": way, "ms": ours, "right": right, "error": error, "peers": times, "errors": errors, "beside": beside}
    if ours:
        row["tflops"] = p.flops(way == "backward") / ours / 1e9
        if times:
            row["best"] = min(times, key=times.get)
            row["ratio"] = times[row["best"]] / ours
    return row


def show(row):
    ratio = f"{row['ratio']:6.3f} {row['best']:9}" if "ratio" in row else f"{'-':>6} {'':9}"
    ours = f"{row['ms']:9.4f} {row['tflops']:7.1f}" if row["ms"] else f"{'-':>9} {'-':>7}"
    peers = " ".join(f"{key} {ms:.4f}" for key, ms in row["peers"].items())
    if row["ms"]:
        peers += "".join(f"  of {key} {ms / row['ms']:.3f}" for key, ms in row["beside"].items())
    print(f"{row['problem']:46} {row['pass']:8} {ours} {ratio} {row['error']:.1e}{'' if row['right'] else ' WRONG'}  {peers}", flush=True)


def summary(rows):
    """Print the least ratio and the geometric mean of the ratios for each group and pass."""
    ratios = {}
    for row in rows:
        if "ratio" in row:
            ratios.setdefault((row["group"], row["pass"]), []).append((row["ratio"], row["problem"]))
    print(f"\n{'group':12} {'pass':8} {'cells':>5} {'mean':>6} {'least':>6}  where")
    for (group, way), x in ratios.items():
        print(f"{group:12} {way:8} {len(x):5} {math.exp(statistics.fmean(math.log(r) for r, _ in x)):6.3f} {min(x)[0]:6.3f}  {min(x)[1]}")


COLUMNS = ["group", "pass", "cells", "FlashAttention-4: mean", "least", "cuDNN: mean", "least", "fastest peer: mean", "least", "problem of the least ratio"]


def table(rows):
    """Return a row of COLUMNS for each group and pass: geometric means and least ratios."""
    groups, lines = {}, []
    for row in rows:
        if "ratio" in row:
            groups.setdefault((row["group"], row["pass"]), []).append(row)
    for (group, way), found in groups.items():
        line = [group, way, str(len(found))]
        for peers in (("fa4",), ("cudnn", "frontend"), None):
            times = [[ms for peer, ms in row["peers"].items() if not peers or peer in peers] for row in found]
            ratios = [min(x) / row["ms"] for row, x in zip(found, times) if x]
            line += [f"{math.exp(statistics.fmean(map(math.log, ratios))):.2f}", f"{min(ratios):.2f}"] if ratios else ["", ""]
        lines.append(line + [min(found, key=lambda row: row["ratio"])["problem"]])
    return lines


def wanted_cells(args):
    """Yield group, problem and pass of all cells that the arguments select."""
    all_ = groups()
    if args.random:
        all_["random"] = drawn(args.seed, args.random)
        all_["layouts"] = [(c, ("forward", "backward") if isinstance(c, gpu_layouts.Packed) else ("forward",)) for c in gpu_layouts.random_cells(args.seed, args.random)]
        print(f"random problems drawn by --seed {args.seed}")
    drawn_too = [g for g in ("random",) if args.random and not {"random", "layouts"} & set(args.groups)]
    wanted = list(all_) if args.groups == ["all"] else args.groups + drawn_too
    if unknown := set(wanted) - set(all_):
        raise SystemExit(f"gpu.py: {', '.join(sorted(unknown))}: not one of {', '.join(all_)}")
    for group in wanted:
        for problem, passes in all_[group]:
            yield from ((group, problem, way) for way in passes if way in args.passes and re.search(args.only, str(problem)))


def compile_part(torch, args):
    """Compile the kernels of a part of the cells, by one call for each kind. Cells of a kind need the same compiled kernels."""
    kinds = {}
    for _, problem, way in wanted_cells(args):
        kind = re.sub(r"^b\d+-|(?<=-)[nm]\d+-", "", problem) if isinstance(problem, str) and "window" not in problem else str(problem)
        kinds.setdefault((problem.compiled() if hasattr(problem, "compiled") else kind, way), (problem, way))
    for problem, way in list(kinds.values())[args.part[0] :: args.part[1]]:
        began = time.perf_counter()
        calls_of(torch, problem, way, args)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        print(f"# {str(problem)} {way}: {time.perf_counter() - began:.1f} s", flush=True)
    return True


def run(torch, args, flush):
    """Run the groups and print their table. Return whether all values are right, and the rows."""
    if args.part:
        return compile_part(torch, args), []
    turns, rows = Turns(torch, flush, 1e3 * args.seconds), []
    print(f"{'problem':46} {'pass':8} {'ms':>9} {'TFLOP/s':>7} {'ratio':>6} {'to':9} error")
    for group, problem, way in wanted_cells(args):
        try:
            row = cell(torch, turns, problem, way, args)
        except torch.OutOfMemoryError:
            print(f"{str(problem):46} {way:8} does not fit in the memory", flush=True)
            continue
        finally:
            gc.collect()  # frees tensors in reference cycles of graphs and wrappers
            torch.cuda.empty_cache()
        rows.append(dict(row, group=group))
        show(row)
        if args.json:
            with open(args.json, "w") as f:
                json.dump(rows, f, indent=1)
    summary(rows)
    return all(row["right"] for row in rows), rows
