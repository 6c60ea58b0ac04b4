"""Compare the errors of our kernels with those of PyTorch's flash kernel on the CPU, for long rows.

    make long-rows
    python bench/peers/long.py bin/flashrun --terms 1024,65536 --kernel 'wasm/*' --dtype bf16

bin/flashrun says which kernels this machine has; each runs on the same random inputs as PyTorch, and NumPy computes
the truth in float64. O, LSE and dQ are sums over keys: they come from a few query rows over many keys. dK and dV are
sums over query rows: they come from many rows over a few keys. Q, K and dO are N(0,1), V is 1 + N(0,1). A number of
the tables is the largest error of an output over all seeds, and behind it how many times that of PyTorch it is.
"""

import argparse
import fnmatch
import json
import pathlib
import platform
import subprocess
import tempfile

import numpy as np
import torch

OUTPUTS = {"rows": ("o", "lse", "dq"), "columns": ("dk", "dv")}
TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
FEW = 16  # query rows if there are many keys, and keys if there are many query rows


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda s: [int(x) for x in s.split(",")]
    parser.add_argument("flashrun")
    parser.add_argument("--terms", type=numbers, default=[1024, 16384, 65536, 262144], help="lengths of the sums")
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--dtype", default="f32", choices=list(TORCH))
    parser.add_argument("--kernel", default="*", help="only kernels whose name matches this pattern")
    parser.add_argument("--limit", type=float, help="exit with 1 if a ratio is above this")
    return parser.parse_args()


def inputs(args, rows, keys, seed):
    """Return q, k, v, do as float32 tensors whose numbers the dtype holds exactly."""
    r = np.random.default_rng(seed)
    x = {name: r.standard_normal((1, args.heads, n, args.head_dim), np.float32)
         for name, n in (("q", rows), ("k", keys), ("v", keys), ("do", rows))}
    x["v"] += 1
    return {name: torch.from_numpy(t).to(TORCH[args.dtype]).float() for name, t in x.items()}


def truth(x):
    """Return attention and its gradients in float64, computed by definition."""
    q, k, v, do = (x[name].numpy().astype(np.float64) for name in ("q", "k", "v", "do"))
    transposed = lambda t: np.swapaxes(t, -1, -2)
    scale = q.shape[-1] ** -0.5
    s = scale * q @ transposed(k)
    top = s.max(axis=-1, keepdims=True)
    weight = np.exp(s - top)
    total = weight.sum(axis=-1, keepdims=True)
    p = weight / total
    dp = do @ transposed(v)
    ds = scale * p * (dp - (p * dp).sum(axis=-1, keepdims=True))
    return {"o": p @ v, "lse": (top + np.log(total))[..., 0], "dq": ds @ k, "dk": transposed(ds) @ q, "dv": transposed(p) @ do}


def peer(x, dtype):
    """Return the outputs and gradients of PyTorch's flash kernel for CPUs."""
    q, k, v, do = (x[name].to(TORCH[dtype]).clone().requires_grad_(name != "do") for name in ("q", "k", "v", "do"))
    o, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
    o.backward(do)
    return {name: t.detach().double().numpy() for name, t in (("o", o), ("lse", lse), ("dq", q.grad), ("dk", k.grad), ("dv", v.grad))}


def tensors(path):
    """Return the tensors of a safetensors file as float64."""
    blob = path.read_bytes()
    start = 8 + int.from_bytes(blob[:8], "little")
    result = {}
    for name, t in json.loads(blob[8:start]).items():
        if name == "__metadata__":
            continue
        raw = blob[start + t["data_offsets"][0]:start + t["data_offsets"][1]]
        if t["dtype"] == "BF16":
            x = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            x = np.frombuffer(raw, {"F32": np.float32, "F16": np.float16}[t["dtype"]])
        result[name] = x.astype(np.float64).reshape(t["shape"])
    return result


def kernels(args):
    """Return [(kernel, pass)] of the available kernels that support the dtype."""
    out = subprocess.run([args.flashrun, "list", "--json"], check=True, capture_output=True, text=True).stdout
    return [(k["name"], k["pass"]) for k in json.loads(out)
            if k["available"] and args.dtype in k.get("dtypes", ()) and fnmatch.fnmatch(k["name"], args.kernel)]


def ours(args, folder, kernel, backward):
    """Run a kernel on the .npy files of the folder. Return its outputs, or None if it does not support the problem."""
    out = folder / "out.safetensors"
    command = [args.flashrun, "run", "--backend", kernel, "--dtype", args.dtype, "--repeat", "1", "--json", "--out", str(out)]
    for name in ("q", "k", "v", "do") if backward else ("q", "k", "v"):
        command += ["--in", str(folder / f"{name}.npy")]
    done = subprocess.run(command + ["--pass", "fwd,bwd"] * backward, capture_output=True, text=True)
    if done.returncode:
        if "does not support" in done.stderr:
            return None
        raise SystemExit(f"{kernel}: {done.stderr.strip()}")
    if json.loads(done.stdout)["kernel"] != kernel:
        raise SystemExit(f"{kernel}: flashrun ran {json.loads(done.stdout)['kernel']}")
    return tensors(out)


def measure(args, chosen, terms, shape, errors):
    """Append the largest error of each seed to errors[kernel, output, terms]."""
    rows, keys = (FEW, terms) if shape == "rows" else (terms, FEW)
    for seed in range(args.seeds):
        x = inputs(args, rows, keys, seed)
        want = truth(x)

        def note(kernel, got, names):
            for name in OUTPUTS[shape]:
                if name in names:
                    errors.setdefault((kernel, name, terms), []).append(np.abs(got[name] - want[name]).max())

        note("PyTorch", peer(x, args.dtype), OUTPUTS[shape])
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            for name, t in x.items():
                np.save(folder / f"{name}.npy", t.numpy())
            for kernel, direction in chosen:
                names = [n for n in OUTPUTS[shape] if (n in ("o", "lse")) == (direction == "forward")]
                got = ours(args, folder, kernel, direction == "backward") if names else None
                if got is not None:
                    note(kernel, got, names)


def main():
    args = arguments()
    chosen = kernels(args)
    errors = {}
    for terms in args.terms:
        for shape in OUTPUTS:
            measure(args, chosen, terms, shape, errors)
    worst = {key: max(e) for key, e in errors.items()}
    print(f"{platform.machine()}, PyTorch {torch.__version__}, {args.dtype}, {args.heads} heads, head dim {args.head_dim}, "
          f"{FEW} rows or keys beside those of the table, {args.seeds} seeds")
    above = False
    for name in sum(OUTPUTS.values(), ()):
        print(f"\n{name}\n\n| {'keys' if name in OUTPUTS['rows'] else 'query rows'} | " + " | ".join(f"{t:,}" for t in args.terms) + " |")
        print("|---" * (len(args.terms) + 1) + "|")
        for kernel in ["PyTorch"] + [k for k, _ in chosen]:
            if not any((kernel, name, t) in worst for t in args.terms):
                continue
            cells = []
            for t in args.terms:
                error = worst.get((kernel, name, t))
                ratio = error / worst["PyTorch", name, t] if error is not None else 0
                above |= args.limit is not None and ratio > args.limit
                cells.append("" if error is None else f"{error:.1e}" if kernel == "PyTorch" else f"{error:.1e} ({ratio:.1f})")
            print(f"| {kernel} | " + " | ".join(cells) + " |")
    raise SystemExit(1 if above else 0)


if __name__ == "__main__":
    main()
