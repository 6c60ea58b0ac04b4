"""Sentences a second of all-MiniLM-L6-v2 in float32: ours beside ONNX Runtime and PyTorch.

    make peers-minilm
    python bench/peers/minilm.py bin/peers-sentences FOLDER --threads 1 --cells 1x16,32xmixed --rounds 3
    python bench/peers/minilm.py bin/peers-sentences FOLDER --sides onnx,bf16-weights,bf16 --results bench/results/minilm.json

FOLDER has the published model, as make verify-minilm unpacks it. A batch is random ids, of one length or of 8 to 128
tokens ("mixed"). The others get it padded to its longest sequence, with a mask, ours gets it packed; where all lengths
are equal there is no mask. Mean pooling and division by the length are part of each call, tokenization is not. The graph of
ONNX Runtime is exported from the transformers model (opset 17, all optimizations on), PyTorch runs that model with
scaled_dot_product_attention. --sides bf16-weights,bf16 adds ours with weights, or all that products multiply, in bf16. Each side is a process of its own, and for the table they are timed in turns, in another
order each round: a turn is the median of the calls of --seconds, a side's figure that of the median of its turns.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

import numpy as np

import results

LEGEND = """
ours, ONNX Runtime, PyTorch   sentences a second: the medians of the turns
ratio    ours over the side on its left
best     the same of the fastest call of each, which shows what a side can do where others keep the processors busy
GFLOP/s  ours: products of matrices and attention, 2 for a multiply-add, of the real tokens alone
CPU      the same of the seconds of processors a call, of which others at work take little. With more threads than one the
         others' wait for each other at work
apart    max |ours - side| over all elements of all vectors
MB       peak resident memory of the process in all cells of that number of threads
"""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ours", type=os.path.abspath, help="bench/peers/sentences, built")
    parser.add_argument("folder", type=pathlib.Path, help="of the model")
    parser.add_argument("--threads", type=lambda s: [int(x) for x in s.split(",")], default=[1, 2])
    lengths = ["16", "128", "512", "mixed"]
    parser.add_argument("--cells", type=lambda s: s.split(","), default=[f"{b}x{n}" for n in lengths for b in (1, 8, 32) if (b, n) != (1, "mixed")])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn")
    parser.add_argument("--sides", type=lambda s: s.split(","), default=["onnx", "torch"], help="onnx, torch, and ours in another precision: bf16-weights, bf16")
    parser.add_argument("--json", help="also write all results to this file")
    parser.add_argument("--results", metavar="FILE", help="also write a table of docs/performance.md")
    return parser.parse_args()


def batch(cell, vocab):
    """Return random token ids of each sequence of a batch."""
    size, length = cell.split("x", 1)
    rng = np.random.default_rng(1)
    lengths = rng.integers(8, 129, int(size)) if length == "mixed" else [int(length)] * int(size)
    return [rng.integers(1000, vocab, n).tolist() for n in lengths]


def padded(sequences):
    ids = np.zeros((len(sequences), max(map(len, sequences))), np.int64)
    mask = np.zeros_like(ids)
    for i, s in enumerate(sequences):
        ids[i, : len(s)], mask[i, : len(s)] = s, 1
    return ids, mask


def embedder(folder, attention):
    """Return the published model with its pooling, as a PyTorch module."""
    import torch
    from transformers import BertModel

    class Embedder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = BertModel.from_pretrained(folder, attn_implementation=attention, add_pooling_layer=False).eval()

        def forward(self, ids, mask):
            hidden = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
            if mask is None:
                mean = hidden.mean(1)
            else:
                weight = mask.unsqueeze(-1).to(hidden.dtype)
                mean = (hidden * weight).sum(1) / weight.sum(1)
            return torch.nn.functional.normalize(mean, dim=1)

    return Embedder()


def export(folder, path):
    import torch

    ids = torch.randint(1000, 2000, (2, 7))
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    dynamic = {"ids": {0: "batch", 1: "length"}, "mask": {0: "batch", 1: "length"}, "vectors": {0: "batch"}}
    torch.onnx.export(embedder(folder, "eager"), (ids, mask), str(path), input_names=["ids", "mask"], output_names=["vectors"],
                      dynamic_axes=dynamic, opset_version=17, dynamo=False)


def worker(side, folder, threads):
    """Answer requests for a peer, in the protocol of bench/peers/sentences."""
    if side == "onnx":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, ["CPUExecutionProvider"])
        prepare = lambda ids, mask: lambda: session.run(None, {"ids": ids, "mask": mask})[0]
    else:
        import torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        model = embedder(folder, "sdpa")

        def prepare(ids, mask):
            ids, mask = torch.from_numpy(ids), None if mask.all() else torch.from_numpy(mask)
            return lambda: model(ids, mask).numpy()

    sys.stdout.write("{}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        r = json.loads(line)
        starts = r["starts"]
        call = prepare(*padded([r["ids"][a:b] for a, b in zip(starts, starts[1:])]))
        vectors, times, end = call(), [], time.perf_counter() + r["seconds"]
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        reply = dict(median=statistics.median(times), best=min(times), calls=len(times))
        if r["vectors"]:
            reply["vectors"] = vectors.flatten().tolist()
        print(json.dumps(reply), flush=True)


class Process:
    def __init__(self, command, threads):
        env = dict(os.environ, GOMAXPROCS=str(threads), OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads),
                   FLASHKIT_PROFILE="off", CUDA_VISIBLE_DEVICES="-1", TOKENIZERS_PARALLELISM="false")
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a side ended")
        return json.loads(line)

    def ask(self, sequences, seconds, vectors=False):
        starts = np.cumsum([0] + [len(s) for s in sequences]).tolist()
        request = dict(ids=[i for s in sequences for i in s], starts=starts, seconds=seconds, vectors=vectors)
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        return self.read()

    def cpu(self):
        """Return the processor time of the process in seconds, NaN if unknown."""
        try:
            fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            return float("nan")
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak(self):
        """Return the peak resident memory of the process in MB, NaN if unknown."""
        try:
            status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return float("nan")
        return int(status.split("VmHWM:")[1].split()[0]) / 1e3

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)


def work(sequences, c):
    """Return the GFLOP of a batch."""
    h, layers = c["hidden_size"], c["num_hidden_layers"]
    return layers * sum(2 * n * (4 * h * h + 2 * h * c["intermediate_size"]) + 4 * n * n * h for n in map(len, sequences)) / 1e9


PEERS = {"onnx": ("ONNX Runtime", "onnxruntime"), "torch": ("PyTorch", "torch")}


def performance(args, found):
    """Write the table of docs/performance.md: the rates of each precision and their ratios to the peers."""
    number = lambda x: f"{x:.0f}" if x >= 100 else f"{x:.1f}"
    peers, ours = [s for s in args.sides if s in PEERS], ["ours", *(s for s in args.sides if s not in PEERS)]
    columns, rows = ["batch x tokens", "threads"], []
    for s in ours:
        columns += ["f32" if s == "ours" else s, *("over " + PEERS[p][0] for p in peers)]
    for row in found:
        if "peak" in row:
            continue
        size, length = row["cell"].split("x", 1)
        line = [f"{size}, of 8 to 128 tokens" if length == "mixed" else f"{size} x {length}", str(row["threads"])]
        for s in ours:
            line += [number(row["rate"][s]), *(f"{row['rate'][s] / row['rate'][p]:.2f}" for p in peers)]
        rows.append(line)
    memory = [f"{row['threads']} threads: " + ", ".join(f"{s} {mb:.0f}" for s, mb in row["peak"].items()) for row in found if "peak" in row]
    results.write(args.results, {
        "title": "Sentences a second", "question": "How many sentences per second does all-MiniLM-L6-v2 turn into vectors?", "machine": results.machine(),
        "peers": results.versions(*(PEERS[p] for p in peers)), "columns": columns, "rows": rows,
        "notes": [f"Medians of {args.rounds} rounds in turns.", f"Peak memory, MB. {'; '.join(memory)}."]})


def main():
    args = arguments()
    graph = args.folder / "model.onnx"
    if "onnx" in args.sides and not graph.exists():
        subprocess.run([sys.executable, __file__, "--export", args.folder, graph], check=True)  # in a separate process, which frees its memory
    config = json.loads((args.folder / "config.json").read_text())
    found = []
    print(f"{'threads':>7} {'cell':>9} {'ours':>8} {'GFLOP/s':>8}" + "".join(f" {s:>8} {'ratio':>6} {'best':>6} {'CPU':>6} {'apart':>8}" for s in args.sides))
    for threads in args.threads:
        sides = {"ours": Process([args.ours, args.folder], threads)}
        for s in args.sides:
            if s.startswith("bf16"):
                sides[s] = Process([args.ours, args.folder, s], threads)
                continue
            sides[s] = Process([sys.executable, __file__, "--worker", s, args.folder, str(threads)], threads)
            sides[s].read()
        for cell in args.cells:
            sequences = batch(cell, config["vocab_size"])
            vectors = {s: np.array(p.ask(sequences, 0, True)["vectors"]) for s, p in sides.items()}
            cpus = {s: [] for s in sides}
            turns, best, order, allocs = {s: [] for s in sides}, dict.fromkeys(sides, float("inf")), list(sides), 0
            for _ in range(args.rounds):
                random.shuffle(order)
                for s in order:
                    before = sides[s].cpu()
                    reply = sides[s].ask(sequences, args.seconds)
                    cpus[s].append((sides[s].cpu() - before) / (reply["calls"] + 1))
                    turns[s].append(reply["median"])
                    best[s] = min(best[s], reply["best"])
                    allocs = reply.get("allocs", allocs)
            cpu = {s: statistics.median(t) for s, t in cpus.items()}
            rate = {s: len(sequences) / statistics.median(t) for s, t in turns.items()}
            row = f"{threads:>7} {cell:>9} {rate['ours']:>8.1f} {work(sequences, config) * rate['ours'] / len(sequences):>8.1f}"
            apart = {s: float(np.abs(vectors[s] - vectors["ours"]).max()) for s in args.sides}
            print(row + "".join(f" {rate[s]:>8.1f} {rate['ours'] / rate[s]:>6.2f} {best[s] / best['ours']:>6.2f} {cpu[s] / cpu['ours']:>6.2f} {apart[s]:>8.1g}" for s in args.sides), flush=True)
            found.append(dict(threads=threads, cell=cell, rate=rate, apart=apart, turns=turns, best=best, cpu=cpu, allocs=allocs))
        peaks = {s: p.peak() for s, p in sides.items()}
        print(f"{threads:>7} {'MB':>9} " + ", ".join(f"{s} {mb:.0f}" for s, mb in peaks.items()))
        found.append(dict(threads=threads, peak=peaks))
        for p in sides.values():
            p.close()
    print(LEGEND)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(found, indent=1))
    if args.results:
        performance(args, found)


if sys.argv[1:2] == ["--worker"]:
    worker(sys.argv[2], pathlib.Path(sys.argv[3]), int(sys.argv[4]))
elif sys.argv[1:2] == ["--export"]:
    export(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
else:
    main()
