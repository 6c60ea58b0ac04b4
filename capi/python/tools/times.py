#!/usr/bin/env python3
"""Time flashkit.attention beside PyTorch's scaled_dot_product_attention, in one process.

    make times
    python tools/times.py [--seconds 1] [--threads 2] [--rounds 5] [--device cuda]

Seven shapes, float32 and bfloat16, both passes. The two take turns, so that what else the machine
does meets both; a number is the median of the rounds of the shortest call of a turn. On a GPU, a
call is the mean of 20 calls up to their end. The
backward pass of PyTorch is the time of autograd.grad, ours that of attention_backward; the
forward pass of PyTorch is without gradients.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F

import flashkit
import flashkit.torch

SHAPES = [(1, 12, 16, 64, False), (8, 12, 32, 64, True), (1, 8, 512, 64, True), (1, 8, 2048, 64, True), (8, 12, 128, 32, False), (2, 12, 384, 64, False), (1, 4, 1024, 128, True)]


def shortest(f, seconds, device):
    """Return the shortest time of a call in a turn of that many seconds."""
    best, end, calls = float("inf"), time.perf_counter() + seconds, 20 if device == "cuda" else 1
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(calls):
            f()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def calls(b, h, n, d, causal, dtype, device):
    """Return, for each pass, our call, PyTorch's, and the operator's of flashkit.torch."""
    q, k, v, do = (torch.randn(b, h, n, d, dtype=dtype, device=device) for _ in range(4))
    training = flashkit.Dispatcher(paired=True)
    o, lse = flashkit.attention(q, k, v, causal=causal, return_lse=True, backend=training)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    theirs = F.scaled_dot_product_attention(*leaves, is_causal=causal)
    operator = flashkit.torch.attention(*leaves, causal=causal)

    def forward():
        with torch.no_grad():
            F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def forward_operator():
        with torch.no_grad():
            flashkit.torch.attention(q, k, v, causal=causal)

    yield "forward", lambda: flashkit.attention(q, k, v, causal=causal), forward, forward_operator
    yield (
        "backward",
        lambda: flashkit.attention_backward(do, q, k, v, o, lse, causal=causal, backend=training),
        lambda: torch.autograd.grad(theirs, leaves, do, retain_graph=True),
        lambda: torch.autograd.grad(operator, leaves, do, retain_graph=True),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.4, help="of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    where = torch.cuda.get_device_name() if args.device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"flashkit {flashkit.__version__}, PyTorch {torch.__version__}, {where}; times in ms\n")
    print("| shape | type | pass | flashkit.attention | flashkit.torch | PyTorch | ratio |")
    print("|---|---|---|--:|--:|--:|--:|")
    worst = float("inf")
    for shape in SHAPES:
        for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
            for way, *functions in calls(*shape, dtype, args.device):
                for f in functions:
                    f()
                turns = [[shortest(f, args.seconds, args.device) for f in functions] for _ in range(args.rounds)]
                ours, theirs, operator = (statistics.median(column) * 1e3 for column in zip(*turns))
                worst = min(worst, theirs / ours)
                b, h, n, d, causal = shape
                text = f"[{b}, {h}, {n}, {d}]{' causal' if causal else ''}"
                print(f"| {text} | {name} | {way} | {ours:.3f} | {operator:.3f} | {theirs:.3f} | {theirs / ours:.2f} |", flush=True)
    print(f"\nsmallest ratio {worst:.2f}")


if __name__ == "__main__":
    main()
