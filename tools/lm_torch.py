#!/usr/bin/env python3
"""Train the model of examples/lm with PyTorch beside it: same weights, batches and optimizer.

    make lm-torch
    python tools/lm_torch.py bin/lm [--steps 50] [--length 256] [--threads 2] [--plain]

Both run in float32 on the CPU, without dropout. The losses of each step must agree within
1e-4; tokens a second of both are printed, of the steps after the first five. PyTorch's attention
is scaled_dot_product_attention, or with --plain the formula with all weights in memory, as
examples/lm has it with --flash=false.
"""

import argparse
import gzip
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import torch
from safetensors import safe_open
from torch.nn import functional as F

import nn_vectors

BITS = (1 << 64) - 1


def mix(x):
    """A step of SplitMix64, as in examples/lm/text.go."""
    x = (x + 0x9E3779B97F4A7C15) & BITS
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & BITS
    x = (x ^ x >> 27) * 0x94D049BB133111EB & BITS
    return x ^ x >> 31


def sdpa(q, k, v, heads, kv_heads, causal, rotary=None):
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(-2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("lm")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--embedding", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--plain", action="store_true")
    a = parser.parse_args()
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(a.threads)
    if not a.plain:
        nn_vectors.attend = sdpa
    text = gzip.decompress((pathlib.Path(__file__).parent.parent / "examples/lm/plays.txt.gz").read_bytes())
    symbols = sorted(set(text))
    ids = torch.tensor([symbols.index(b) for b in text])

    folder = pathlib.Path(tempfile.mkdtemp())
    shape = [f"--batch={a.batch}", f"--length={a.length}", f"--embedding={a.embedding}", f"--hidden={4 * a.embedding}", f"--layers={a.layers}",
             "--heads=4", f"--dim-head={a.embedding // 4}", "--dropout=0", f"--lr={a.lr}", "--sample=0", f"--workers={a.threads}", "--every=5"]
    if a.plain:
        shape.append("--flash=false")
    subprocess.run([a.lm, "--steps=0", f"--checkpoint={folder}/start", *shape], check=True, stdout=subprocess.DEVNULL)
    out = subprocess.run([a.lm, f"--steps={a.steps}", f"--losses={folder}/losses", *shape], check=True, stdout=subprocess.PIPE, text=True).stdout
    rates = [float(x) for x in re.findall(r"(\d+) tokens/s", out)]
    ours = [float(x) for x in (folder / "losses").read_text().split()]
    memory = re.search(r"memory of a step: (.*?) besides", out).group(1)

    model = nn_vectors.LanguageModel({"features": a.embedding, "hidden": 4 * a.embedding, "layers": a.layers, "heads": 4, "dim_head": a.embedding // 4,
                                      "causal": True, "sequence_len": a.length, "vocabulary": len(symbols)})
    with safe_open(folder / "start", "pt") as f:
        model.load_state_dict({name: f.get_tensor(name) for name, _ in model.named_parameters()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=0.01)
    theirs, times = [], []
    for step in range(a.steps):
        start = time.perf_counter()
        at = [mix((1 << 32) ^ (step << 12) ^ b) % (len(text) - a.length) for b in range(a.batch)]
        tokens = torch.stack([ids[i : i + a.length] for i in at])
        targets = torch.stack([ids[i + 1 : i + 1 + a.length] for i in at])
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        theirs.append(loss.item())
        times.append(time.perf_counter() - start)
    worst = max(abs(x - y) for x, y in zip(ours, theirs))
    rate = a.batch * a.length * len(times[5:]) / sum(times[5:])
    mine = len(rates[1:]) / sum(1 / r for r in rates[1:])
    print(json.dumps({"steps": a.steps, "length": a.length, "first": theirs[0], "last": theirs[-1], "worst difference of the loss": worst,
                      "tokens/s": mine, "PyTorch tokens/s": rate, "ratio": mine / rate, "memory of a step": memory}, indent=1))
    return worst > 1e-4


if __name__ == "__main__":
    sys.exit(main())
