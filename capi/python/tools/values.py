#!/usr/bin/env python3
"""Compare the operators of flashkit.torch with float64 autograd on random problems with random features.

    make values
    python tools/values.py [--problems 300] [--seed 1] [--only 17] [--backend simd/fwd_avx2] [--device cuda]

The problems, the reference and the bound are those of tools/torch_values.py in the root, whose
description says what they are: an output passes if its largest error is at most twice
that of PyTorch in the same type, or four roundings. The gradients are those of autograd through
the operator, from O and LSE. Every second problem has tensors with rows before heads.
"""

import pathlib
import sys

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tools"))

import flashrun
import torch_values

import flashkit
import flashkit.torch

LEAVES = ("q", "k", "v", "bias", "sink")
COLUMNS = ("lse", "dlse")


INTEGERS = ("q_lens", "kv_lens", "q_starts", "kv_starts", "pages")


def tensors(p, x, device):
    """Return the inputs as tensors on a device, those of integers on the host: LSE, slopes and sinks stay float32, others have the problem's type."""
    kind, out = torch_values.TYPES[p.dtype][0], {}
    for name, a in x.items():
        t = torch.from_numpy(np.ascontiguousarray(a))
        t = t if name in INTEGERS else t.to(device)
        out[name] = t.to(kind) if t.is_floating_point() and name not in (*COLUMNS, "slopes", "sink") else t
    if p.seed % 2:  # half of the problems have tensors in the layout [B, N, H, D]
        for name in ("q", "k", "v", "do", "o"):
            if name in out:
                out[name] = out[name].transpose(1, 2).contiguous().transpose(1, 2)
    return out


def keywords(p, x):
    """Return the keywords that a problem stands for."""
    window = None if (p.left, p.right) == (-1, -1) else tuple(None if side < 0 else side for side in (p.left, p.right))
    given = {name: x[name] for name in ("bias", "mask", "slopes", "sink", *INTEGERS) if name in x}
    return dict(window=window, top_left=p.top_left, shift=p.shift, scale=p.scale, softcap=p.softcap or None, dropout=p.dropout, seed=p.seed, **given)


def ours(p, inputs, backend, device):
    """Return the outputs, by autograd where the problem has a backward pass."""
    x = tensors(p, inputs, device)
    leaves = {name: x[name].requires_grad_() for name in LEAVES if name in x and p.backward}
    try:
        if p.carry:  # no PyTorch operator for carry, because carry writes to inputs
            o, lse = flashkit.attention(x["q"], x["k"], x["v"], out=x["o"], lse=x["lse"], carry=True, return_lse=True, backend=backend, **keywords(p, x))
        else:
            o, lse = flashkit.torch.attention(x["q"], x["k"], x["v"], return_lse=True, backend=backend, **keywords(p, x))
    except flashkit.UnsupportedError as e:
        raise flashrun.Refused(str(e)) from e
    out = {"o": o, "lse": lse}
    if p.backward:
        dlse = x.get("dlse", torch.zeros_like(lse))
        gradients = torch.autograd.grad((o, lse), list(leaves.values()), (x["do"], dlse))
        out.update(("d" + name, g) for name, g in zip(leaves, gradients))
    return {name: t.detach().float().cpu().numpy() for name, t in out.items()}


def main():
    parser = torch_values.options(__doc__)
    parser.set_defaults(problems=300)
    parser.add_argument("--device", default="cpu", help="of the tensors, such as cuda")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the problems are too small for threads
    backend = None if args.backend == "auto" else args.backend
    sys.exit(not torch_values.run(args, lambda p, x: ours(p, x, backend, args.device)))


if __name__ == "__main__":
    main()
