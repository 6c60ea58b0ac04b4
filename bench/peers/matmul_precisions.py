"""Time products of matrices in bf16 and in 8 bits: ours beside PyTorch and OpenVINO, which call oneDNN.

    python bench/peers/matmul_precisions.py bin/peers-product int8 --threads 1 --weights 384x1536 --rows 8,128

C = A B, A [M, K] and C float32, weights B [K, N] packed before. In 8 bits, ours and PyTorch's linear layer (onednn and x86
are its engines) find the scales of A in each call, for each row or for the matrix; OpenVINO's (ov) are constants. In bf16,
ours and OpenVINO round A in each call, and torch.mm (mm) gets A in bf16 and gives C in bf16. In each cell all sides are
timed in turns, in another order each round. A turn is the median of the calls of --seconds; a side's time is the median of
its turns. A row has the share of the peak of ours, in Gop/s of a multiply-add's two operations, and the time of each side
over ours; in parentheses, the same of the fastest calls. The peak is the rate of VDPBF16PS in registers of all
threads, measured before each cell; in 8 bits it is twice this rate, as VPDPBUSD has twice the products.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

import matmul

WEIGHTS = "384x384,384x1152,384x1536,1536x384,768x768,768x3072,3072x768,4096x4096"
PRECISIONS = {"bf16": 2, "int8": 3}  # of bench/peers/product


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ours", type=os.path.abspath, help="bench/peers/product, built")
    parser.add_argument("precision", choices=PRECISIONS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--weights", default=WEIGHTS)
    parser.add_argument("--rows", default="1,8,32,128,512", help="M")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.05, help="of a turn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path, help="add the rows to this file")
    return parser.parse_args()


def openvino_product(args, a, b):
    import numpy
    import openvino
    from openvino import opset13 as ops

    x, w, hint = ops.parameter(a.shape, numpy.float32), ops.constant(b.T.copy()), "bf16"
    y = x
    if args.precision == "int8":
        end, ends, hint = abs(a).max(), abs(b.T).max(1, keepdims=True), "f32"
        y, w = ops.fake_quantize(x, -end, end, -end, end, 256), ops.fake_quantize(w, -ends, ends, -ends, ends, 255)
    options = dict(INFERENCE_NUM_THREADS=args.threads, INFERENCE_PRECISION_HINT=hint, PERFORMANCE_HINT="LATENCY")
    model = openvino.Model([ops.matmul(y, w, False, True)], [x])
    request, tensor = openvino.Core().compile_model(model, "CPU", options).create_infer_request(), openvino.Tensor(a)
    return lambda: request.infer([tensor], share_inputs=True, share_outputs=True)[0]


def dynamic(engine, x, y):
    """Return PyTorch's linear layer with 8-bit weights, without a bias."""
    import torch

    torch.backends.quantized.engine = engine
    layer = torch.nn.Linear(*y.shape, bias=False)
    layer.weight = torch.nn.Parameter(y.T.contiguous())
    layer = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(layer), {torch.nn.Linear}, dtype=torch.qint8)
    return lambda: layer(x).numpy()


def others(args, a, b):
    import torch

    x, y = torch.from_numpy(a), torch.from_numpy(b)
    calls = {"ov": openvino_product(args, a, b)}
    if args.precision == "bf16":
        x, y = x.bfloat16(), y.bfloat16()
        return calls | {"mm": lambda: torch.mm(x, y)}
    return calls | {engine: dynamic(engine, x, y) for engine in ("onednn", "x86")}


def cell(args, ours, folder, m, k, n):
    """Time the sides in turns, and check their results."""
    import numpy
    import torch

    random_ = numpy.random.default_rng([args.seed, m, k, n])
    a, b = (random_.standard_normal(shape, dtype=numpy.float32) for shape in ((m, k), (k, n)))
    (folder / "in").write_bytes(a.tobytes() + b.tobytes() + bytes(4 * n))
    ours.ask(op="open", file=str(folder / "in"), m=m, k=k, n=n, precision=PRECISIONS[args.precision])
    peak = ours.ask(op="peak", precision=PRECISIONS["bf16"])["peak"] * (2 if args.precision == "int8" else 1)
    turns, best = {}, {}
    with torch.inference_mode():
        calls = others(args, a, b)
        sides = {"ours": ours.turn} | {name: lambda s, call=call: matmul.turn(call, s) for name, call in calls.items()}
        order = list(sides)
        for _ in range(args.rounds):
            random.shuffle(order)
            for name in order:
                matmul.settle()
                median, least = sides[name](args.seconds)
                turns.setdefault(name, []).append(median)
                best[name] = min(best.get(name, least), least)
        results = {name: call() for name, call in calls.items()}
    ours.ask(op="save", file=str(folder / "out"))
    results["ours"] = numpy.fromfile(folder / "out", numpy.float32).reshape(m, n)
    (folder / "out").unlink()
    exact = a.astype(float) @ b.astype(float)
    far = {name: float(abs((c.float().numpy() if hasattr(c, "float") else c) - exact).max() / abs(exact).max()) for name, c in results.items()}
    return dict(precision=args.precision, threads=args.threads, m=m, k=k, n=n, seed=args.seed, peak=peak, turns=turns, best=best, errors=far)


def show(r):
    operations = 2 * r["m"] * r["k"] * r["n"]
    time, best = {name: statistics.median(t) for name, t in r["turns"].items()}, r["best"]
    share = lambda t: operations / t / r["peak"]
    line = f"{r['threads']} {r['k']:>4}x{r['n']:<4} {r['m']:>4} {time['ours'] * 1e6:8.1f} us  {share(time['ours']):.2f} ({share(best['ours']):.2f})"
    for name in sorted(time.keys() - {"ours"}):
        line += f"  {name} {time[name] / time['ours']:.2f} ({best[name] / best['ours']:.2f})"
    print(line + "  errors " + " ".join(f"{name} {x:.1e}" for name, x in r["errors"].items()), flush=True)


def measure(args):
    import torch

    torch.set_num_threads(args.threads)
    ours, rows = matmul.Ours(args.ours), []
    with tempfile.TemporaryDirectory() as folder:
        for weights in args.weights.split(","):
            for m in map(int, args.rows.split(",")):
                rows.append(cell(args, ours, pathlib.Path(folder), m, *map(int, weights.split("x"))))
                show(rows[-1])
    if args.json:
        before = json.loads(args.json.read_text()) if args.json.exists() else []
        args.json.write_text(json.dumps(before + rows))


def main():
    args = arguments()
    if os.environ.get("OMP_NUM_THREADS") == str(args.threads):
        return measure(args)
    env = matmul.environment(args.threads)
    subprocess.run([sys.executable, *sys.argv], env=env, check=True)


if __name__ == "__main__":
    main()
