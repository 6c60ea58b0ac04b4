#!/usr/bin/env python3
"""Train the model of examples/lm with PyTorch beside it: same weights, batches and optimizer.

    make lm-torch
    python tools/lm_torch.py bin/lm [--steps 50] [--length 256] [--threads 2] [--plain] [--double]
    python tools/lm_torch.py bin/lm --batch 4 --length 32 --embedding 64 --layers 2 --lr 1e-3 --write examples/lm/testdata/losses.txt

Both run in float32 on the CPU, without dropout. The losses of each step must agree within 1e-4;
the medians of tokens a second of both are printed, over the steps after the first five. They
take turns of five steps, in which the other one is stopped, so that what else the machine does
meets both.
PyTorch's attention is scaled_dot_product_attention, or with --plain the formula with all weights
in memory, as examples/lm has it with --flash=false. With --double PyTorch trains in float64 as
well: at high learning rates its own losses in float32 leave those by more than 1e-4.
"""

import argparse
import gzip
import json
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from safetensors import safe_open
from torch.nn import functional as F

import nn_vectors

BITS = (1 << 64) - 1
TURN = 5  # number of steps that one program runs at a time


def mix(x):
    """A step of SplitMix64, as in examples/lm/text.go."""
    x = (x + 0x9E3779B97F4A7C15) & BITS
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & BITS
    x = (x ^ x >> 27) * 0x94D049BB133111EB & BITS
    return x ^ x >> 31


def sdpa(q, k, v, heads, kv_heads, causal, rotary=None):
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(-2)


class Ours:
    """A run of examples/lm that trains while it is let."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.out = []

    def turn(self):
        """Let it train for a turn, and stop it."""
        self.process.send_signal(signal.SIGCONT)
        steps = 0
        for line in self.process.stdout:
            self.out.append(line)
            steps += "tokens/s" in line
            if steps == TURN:
                self.process.send_signal(signal.SIGSTOP)
                return

    def finish(self):
        """Let it end, and return what it printed."""
        self.process.send_signal(signal.SIGCONT)
        self.out += self.process.stdout
        if self.process.wait():
            sys.exit(f"{self.process.args[0]} failed")
        return "".join(self.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("lm")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--embedding", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--double", action="store_true", help="PyTorch in float64 as well, to see whose losses are nearer to the truth")
    parser.add_argument("--write", type=pathlib.Path, help="a file for PyTorch's losses")
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
             "--heads=4", f"--dim-head={a.embedding // 4}", "--dropout=0", f"--lr={a.lr}", "--sample=0", f"--workers={a.threads}", "--every=1"]
    if a.plain:
        shape.append("--flash=false")
    subprocess.run([a.lm, "--steps=0", f"--checkpoint={folder}/start", *shape], check=True, stdout=subprocess.DEVNULL)

    def train(dtype, other=None):
        """Return the loss and the time of each step, in turns with the other, if any."""
        model = nn_vectors.LanguageModel({"features": a.embedding, "hidden": 4 * a.embedding, "layers": a.layers, "heads": 4, "dim_head": a.embedding // 4,
                                          "causal": True, "sequence_len": a.length, "vocabulary": len(symbols)}).to(dtype)
        with safe_open(folder / "start", "pt") as f:
            model.load_state_dict({name: f.get_tensor(name) for name, _ in model.named_parameters()})
        optimizer = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=0.01)
        losses, times = [], []
        for step in range(a.steps):
            if other and step % TURN == 0:
                other.turn()
            start = time.perf_counter()
            at = [mix((1 << 32) ^ (step << 12) ^ b) % (len(text) - a.length) for b in range(a.batch)]
            tokens = torch.stack([ids[i : i + a.length] for i in at])
            targets = torch.stack([ids[i + 1 : i + 1 + a.length] for i in at])
            optimizer.zero_grad()
            loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            times.append(time.perf_counter() - start)
        return losses, times

    apart = lambda x, y: max(abs(i - j) for i, j in zip(x, y))
    run = Ours([a.lm, f"--steps={a.steps}", f"--losses={folder}/losses", *shape])
    theirs, times = train(torch.float32, run)
    out = run.finish()
    rates = [float(x) for x in re.findall(r"(\d+) tokens/s", out)]
    ours = [float(x) for x in (folder / "losses").read_text().splitlines() if not x.startswith("#")]
    memory = re.search(r"memory of a step: (.*?) besides", out).group(1)
    if a.write:
        a.write.write_text("".join(f"{x:.7g}\n" for x in theirs))
    worst, skip = apart(ours, theirs), min(5, a.steps - 1)
    rate = a.batch * a.length / statistics.median(times[skip:])
    mine = statistics.median(rates[skip:])
    result = {"steps": a.steps, "length": a.length, "first": theirs[0], "last": theirs[-1], "worst difference of a loss": worst,
              "tokens/s": mine, "PyTorch tokens/s": rate, "ratio": mine / rate, "memory of a step": memory}
    if a.double:
        truth, _ = train(torch.float64)
        result |= {"from float64": apart(ours, truth), "PyTorch from float64": apart(theirs, truth)}
    print(json.dumps(result, indent=1))
    return worst > 1e-4


if __name__ == "__main__":
    sys.exit(main())
