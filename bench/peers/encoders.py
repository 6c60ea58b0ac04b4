"""Published encoders and rerankers, from texts to vectors or scores: nn/encoder beside other libraries on the CPU.

    make -C bench/peers peers-encoders
    python encoders.py bin/peers-encoders MODELS --threads 1 --cells minilm:1x16,bert:8x128 --sides onnx,openvino --rounds 3

MODELS has the folders that encoders_models.py writes: minilm has published weights, the others random weights in the
published shapes. A cell is a model and a batch: 8x128 is 8 texts of 128 tokens, 16xmixed is 16 texts of 8 to 512 tokens, 32xshort 32 of 8 to 128,
10x256 of the reranker is 10 pairs of 256 tokens. Texts are random words of one token each, of the seed that is printed.

ours and hugot get texts, and tokenize them within the timed call. The others get token ids, so their calls do less. A
batch goes to the others in parts of similar lengths, which are padded to the longest, with a mask: of the numbers of texts
in a part that are tried before, the fastest counts. Where a part has one length, PyTorch gets no mask. Mean pooling and
division by the length, or the label's sigmoid, are part of each call.

Sides: onnx is the graph exported from transformers, onnx-fused the same by onnxruntime.transformers' optimizer, openvino is
converted from PyTorch, torch is transformers with scaled_dot_product_attention, hugot is its Go backend (--hugot PROGRAM).
bf16, bf16-weights, int8 and int8-calibrated are ours in another precision, openvino-bf16 and torch-bf16 the others', where
the processor has it. onnx-int8 is ONNX Runtime's dynamic quantization, openvino-int8 is NNCF's static one, with the other operations in f32,
or in bf16 if the side is openvino-int8-bf16.
Each side is a process of its own, and they are timed in turns, in another order each round.
"""

import argparse
import json
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import time

import numpy as np

import results

PACKAGES = {"onnx": ("ONNX Runtime", "onnxruntime"), "openvino": ("OpenVINO", "openvino"), "torch": ("PyTorch", "torch"), "transformers": ("transformers", "transformers")}
PARTS = (1, 4, 16)  # numbers of texts that the others may get at once
TRIAL = 4  # seconds after which no further number is tried
CELLS = ("minilm:1x16,minilm:8x128,minilm:1x512,minilm:64xmixed,bert:1x16,bert:8x128,bert:1x512,bert:64xmixed,"
         "modernbert:1x16,modernbert:8x128,modernbert:1x512,modernbert:64xmixed,modernbert:1x8192,reranker:100x256")
CLS, SEP = 101, 102
LEGEND = """
rate     texts a second of ours: the median of the turns' medians
ratio    ours over the side on its left; best: the same of the fastest calls
apart    max |ours - side| over all elements of all vectors or scores; cosine: the least
parts    texts that the side got at once
"""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ours", type=os.path.abspath, help="bench/peers/encoders, built")
    parser.add_argument("models", type=pathlib.Path)
    parser.add_argument("--threads", type=lambda s: [int(x) for x in s.split(",")], default=[1, 2])
    parser.add_argument("--cells", type=lambda s: s.split(","), default=CELLS.split(","))
    parser.add_argument("--sides", type=lambda s: s.split(","), default=["onnx", "onnx-fused", "openvino", "torch"])
    parser.add_argument("--hugot", type=os.path.abspath, help="the program of bench/peers/hugot")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory", type=float, default=14, help="GB of address space that a side's model may take for the cell")
    parser.add_argument("--json", type=pathlib.Path, help="add the results to this file")
    parser.add_argument("--results", metavar="FILE", help="also write a table of docs/performance.md from all of --json")
    return parser.parse_args()


def words(folder):
    """Return the words of a vocabulary that are one token each, with their ids."""
    lines = (folder / "vocab.txt").read_text().splitlines()
    return [(w, i) for i, w in enumerate(lines) if i > 1000 and len(w) > 2 and w.isascii() and w.isalpha() and w.islower()]


def batch(folder, shape, seed):
    """Return a request: texts, perhaps with a query, and the ids and types that a tokenizer makes of them."""
    count, length = shape.split("x", 1)
    count = int(count)
    most = {"mixed": 512, "short": 128}.get(length)
    lengths = np.linspace(8, most, count).round().astype(int).tolist() if most else [int(length)] * count
    rng, vocabulary = random.Random(seed), words(folder)
    draw = lambda n: rng.choices(vocabulary, k=n)
    join = lambda chosen: " ".join(w for w, _ in chosen)
    r, query = dict(texts=[], ids=[], types=[], query=""), []
    if folder.name == "reranker":
        query = draw(30)
        r["query"] = join(query)
    first = [CLS] + [i for _, i in query] + [SEP] * bool(query)
    rng.shuffle(lengths)
    for n in lengths:
        text = draw(n - len(first) - 1)
        r["texts"].append(join(text))
        r["ids"].append(first + [i for _, i in text] + [SEP])
        r["types"].append([0] * len(first) + [int(bool(query))] * (len(text) + 1))
    return r


def parts(r, count):
    """Return arrays of ids, mask and types: texts sorted by length, in parts of count texts, and the order of the texts."""
    order = sorted(range(len(r["ids"])), key=lambda i: -len(r["ids"][i]))
    out = []
    for at in range(0, len(order), count):
        chosen = order[at : at + count]
        ids = np.zeros((len(chosen), len(r["ids"][chosen[0]])), np.int64)
        mask, types = np.zeros_like(ids), np.zeros_like(ids)
        for row, i in enumerate(chosen):
            n = len(r["ids"][i])
            ids[row, :n], mask[row, :n], types[row, :n] = r["ids"][i], 1, r["types"][i]
        out.append((ids, mask, types))
    return out, order


def prepared(folder, name):
    """Write a graph of the model if it does not exist, in a separate process, which frees its memory."""
    script = pathlib.Path(__file__).parent / "encoders_models.py"
    if not (folder / name).exists():
        subprocess.run([sys.executable, script, "--graph", folder, name], check=True, stdout=subprocess.DEVNULL)


def onnx_side(folder, file, threads):
    import onnxruntime

    prepared(folder, file)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(str(folder / file), options, ["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    kinds = [np.int32 if "int32" in i.type else np.int64 for i in session.get_inputs()]
    prepare = lambda part: {name: x.astype(kind) for name, kind, x in zip(names, kinds, part)}
    return prepare, lambda feed: session.run(None, feed)[0]


def openvino_side(folder, precision, threads):
    import openvino

    core = openvino.Core()
    file, hint = {"int8": ("int8.xml", "f32"), "int8-bf16": ("int8.xml", "bf16")}.get(precision, ("model.xml", precision))
    if hint not in [s.lower() for s in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")] + ["f32"]:
        raise SystemExit("the processor has no " + hint)
    prepared(folder, file)
    more = dict(INFERENCE_NUM_THREADS=threads, INFERENCE_PRECISION_HINT=hint, PERFORMANCE_HINT="LATENCY")
    compiled = core.compile_model(str(folder / file), "CPU", more)
    request, count = compiled.create_infer_request(), len(compiled.inputs)
    prepare = lambda part: [openvino.Tensor(x) for x in part[:count]]

    def call(tensors):
        request.infer(tensors, share_inputs=True, share_outputs=True)
        return request.get_output_tensor(0).data

    return prepare, call


def torch_side(folder, precision, threads):
    import torch

    import encoders_models

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    model, count = encoders_models.module(folder, "sdpa"), len(encoders_models.inputs(folder.name))
    if precision == "bf16":
        model = model.to(torch.bfloat16)

    def prepare(part):
        tensors = [torch.from_numpy(x) for x in part[:count]]
        if part[1].all():
            tensors[1] = None
        return tensors

    return prepare, lambda tensors: model(*tensors).float().numpy()


def side_of(side, folder, threads):
    library, _, kind = side.partition("-")
    if library == "onnx":
        return onnx_side(folder, {"fused": "fused.onnx", "int8": "dynamic8.onnx"}.get(kind, "model.onnx"), threads)
    return (openvino_side if library == "openvino" else torch_side)(folder, kind or "f32", threads)


def worker(side, folder, threads, gigabytes):
    """Answer requests for a library, in the protocol of bench/peers/encoders. A request with ids begins a cell."""
    resource.setrlimit(resource.RLIMIT_AS, (int((gigabytes + 6) * 2**30),) * 2)
    prepare, call = side_of(side, folder, threads)
    send = lambda reply: print(json.dumps(reply), flush=True)
    send({})
    for line in sys.stdin:
        r = json.loads(line)
        if "ids" in r:
            run, order, count = fastest(prepare, call, r)
        times, end = [], time.perf_counter() + r["seconds"]
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            out = run()
            times.append(time.perf_counter() - start)
        reply = dict(median=statistics.median(times), best=min(times), calls=len(times), parts=count)
        if r["results"]:
            rows = np.empty((len(order), out[0].shape[-1]), np.float32)
            rows[order] = np.concatenate(out)
            reply["results"] = rows.flatten().tolist()
        send(reply)


def fastest(prepare, call, r):
    """Return the fastest way to run a batch in parts, the order of its results, and the number of texts in a part."""
    best, start = None, time.perf_counter()
    for count in PARTS:
        chosen, order = parts(r, count)
        feeds = [prepare(p) for p in chosen]
        run = lambda feeds=feeds: [np.array(call(f)) for f in feeds]
        if best is None:
            run()
        begin = time.perf_counter()
        run()
        took = time.perf_counter() - begin
        if best is None or took < best[0]:
            best = took, run, order, count
        if count >= len(r["ids"]) or time.perf_counter() - start > TRIAL:
            break
    return best[1:]


class Process:
    def __init__(self, command, threads):
        env = dict(os.environ, GOMAXPROCS=str(threads), OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads),
                   FLASHKIT_PROFILE="off", CUDA_VISIBLE_DEVICES="-1", TOKENIZERS_PARALLELISM="false")
        errors = None if os.environ.get("ENCODERS_ERRORS") else subprocess.DEVNULL
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        self.alive = True
        self.read()

    def read(self):
        line = self.process.stdout.readline()
        self.alive = bool(line)
        return json.loads(line) if line else {}

    def ask(self, request, seconds, want=False):
        self.process.stdin.write(json.dumps(request | dict(seconds=seconds, results=want)).encode() + b"\n")
        self.process.stdin.flush()
        return self.read()

    def peak(self):
        """Return the peak resident memory of the process in MB, NaN if unknown."""
        try:
            status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
            return int(status.split("VmHWM:")[1].split()[0]) / 1e3
        except (OSError, IndexError):
            return float("nan")

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)


def is_ours(side):
    return side == "ours" or side.startswith(("bf16", "int8"))


def command(args, side, folder, threads):
    """Return the command of a side. The precisions of ours are sides too."""
    if is_ours(side):
        return [args.ours, folder] + [side] * (side != "ours")
    if side == "hugot":
        prepared(folder, "hidden.onnx")
        return [args.hugot, folder]
    return [sys.executable, __file__, "--worker", side, folder, str(threads), str(args.memory)]


def measure(args, folder, shape, threads):
    """Return the result of a cell: times, differences and memory of each side that could run it."""
    sides, r = {}, batch(folder, shape, args.seed)
    texts = dict(texts=r["texts"], query=r["query"])
    first = {}
    for s in ["ours", *args.sides]:
        p = Process(command(args, s, folder, threads), threads)
        request = texts if s == "hugot" or is_ours(s) else r
        first[s] = p.ask(request, 0, True) if p.alive else {}
        if p.alive:
            sides[s] = p
        else:
            print(f"{folder.name} {shape}: {s} could not run it", file=sys.stderr)
    if "ours" not in sides:
        return None
    turns, best, order = {s: [] for s in sides}, dict.fromkeys(sides, float("inf")), list(sides)
    for _ in range(args.rounds):
        random.shuffle(order)
        for s in order:
            reply = sides[s].ask(texts if s == "hugot" or is_ours(s) else {}, args.seconds)
            turns[s].append(reply["median"])
            best[s] = min(best[s], reply["best"])
    vectors = {s: np.array(first[s]["results"]).reshape(len(r["texts"]), -1) for s in sides}
    row = dict(model=folder.name, shape=shape, threads=threads, texts=len(r["texts"]), tokens=sum(map(len, r["ids"])), seed=args.seed, turns=turns, best=best,
               parts={s: first[s].get("parts") for s in sides}, peak={s: p.peak() for s, p in sides.items()},
               apart={s: float(np.abs(v - vectors["ours"]).max()) for s, v in vectors.items()}, cosine={s: cosine(v, vectors["ours"]) for s, v in vectors.items()})
    for p in sides.values():
        p.close()
    return row


def cosine(a, b):
    return float(((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min())


def show(row):
    ours = statistics.median(row["turns"]["ours"])
    print(f"{row['threads']} {row['model']}:{row['shape']}: ours {row['texts'] / ours:.4g} texts/s, {ours * 1e3:.4g} ms, {row['peak']['ours']:.0f} MB")
    for s in row["turns"]:
        if s != "ours":
            t = statistics.median(row["turns"][s])
            print(f"    {s:<14} ratio {t / ours:6.3f}  best {row['best'][s] / row['best']['ours']:6.3f}  apart {row['apart'][s]:.2g}  cosine {row['cosine'][s]:.7f}"
                  f"  parts {row['parts'][s]}  {row['peak'][s]:.0f} MB", flush=True)


def table(args, found):
    """Write the table of docs/performance.md: our rate of each cell and its ratios to the others."""
    libraries = ["onnx", "openvino", "torch", "hugot"]
    names = {s: PACKAGES[s][0] if s in PACKAGES else s for s in libraries}
    rows = []
    for row in found:
        t = {s: statistics.median(x) for s, x in row["turns"].items()}
        t["onnx"] = min(t[s] for s in ("onnx", "onnx-fused") if s in t) if "onnx" in t or "onnx-fused" in t else None
        ratio = lambda s: f"{t[s] / t['ours']:.2f}" if t.get(s) else ""
        rows.append([row["model"], row["shape"].replace("x", " x "), str(row["threads"]), f"{row['texts'] / t['ours']:.3g}", *map(ratio, libraries)])
    results.write(args.results, {
        "title": "Texts a second", "question": "How many texts per second do published encoders turn into vectors?", "machine": results.machine(),
        "peers": results.versions(*PACKAGES.values()), "columns": ["model", "texts x tokens", "threads", "f32", *("over " + names[s] for s in libraries)],
        "rows": rows, "notes": [f"Medians of {args.rounds} rounds in turns."]})


def rates(found):
    """Print the rows of a table of precisions: each side's texts a second in each cell, and its peak memory."""
    print("side, " + ", ".join(f"{row['model']}:{row['shape']} x{row['threads']}" for row in found) + ", MB")
    for side in found[0]["turns"]:
        cells = [f"{row['texts'] / statistics.median(row['turns'][side]):.3g}" if side in row["turns"] else "" for row in found]
        print(", ".join([side, *cells, str(round(max(row["peak"].get(side, 0) for row in found)))]))


def main():
    args = arguments()
    print(f"{results.machine()}; seed {args.seed}; {', '.join(results.versions(*PACKAGES.values()))}")
    found = json.loads(args.json.read_text()) if args.json and args.json.exists() else []
    for threads in args.threads:
        for cell in args.cells:
            name, shape = cell.split(":")
            row = measure(args, args.models / name, shape, threads)
            if row:
                row["versions"] = results.versions(*PACKAGES.values())
                show(row)
                found.append(row)
                if args.json:
                    args.json.write_text(json.dumps(found, indent=1))
    print(LEGEND)
    rates(found)
    if args.results:
        table(args, found)


if sys.argv[1:2] == ["--worker"]:
    worker(sys.argv[2], pathlib.Path(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
else:
    main()
