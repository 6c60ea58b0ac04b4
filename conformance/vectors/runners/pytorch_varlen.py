"""PyTorch's varlen_attn on the GPU: packed sequences by FlashAttention. Install: torch, numpy."""

import inspect

import numpy as np
import torch
from torch.nn.attention.varlen import AuxRequest, varlen_attn

import judge

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
torch.set_default_device("cuda")


@judge.runner(f"PyTorch {torch.__version__.split('+')[0]} varlen_attn on the GPU", "gqa scale window top_left ragged dlse page", "f16 bf16")
def attention(q, k, v, **case):
    batch, rows, keys = case["batch"], case["q_len"], case["kv_len"]
    q_lens, kv_lens = (np.full(batch, n) if x is None else x for x, n in ((case["q_lens"], rows), (case["kv_lens"], keys)))
    left, right = (-1 if x is None else x for x in (case["left"], case["right"]))
    if case["top_left"] and (q_lens != kv_lens).any() and (left, right) != (-1, -1):
        raise judge.Unsupported("the last row and the last key are aligned")
    if min(case["left"] or 0, case["right"] or 0) < 0:
        raise judge.Unsupported("no band that leaves out the diagonal")
    if case["dim"] % 8 or case["dim"] > 256:
        raise judge.Unsupported("head dims are multiples of 8 up to 256")
    shown = {"q": np.arange(rows) < q_lens[:, None], "k": np.arange(keys) < kv_lens[:, None]}
    packed = lambda x, side: torch.tensor(x.swapaxes(1, 2)[shown[side]]).to(DTYPES[case["dtype"]]).requires_grad_()
    starts = lambda lens: torch.tensor(np.append(0, np.cumsum(lens)), dtype=torch.int32)

    def padded(x, side, fill=0):
        x = x.detach().float().cpu().numpy()
        out = np.full(shown[side].shape + x.shape[1:], fill, np.float32)
        out[shown[side]] = x
        return out.swapaxes(1, 2)

    inputs = [packed(q, "q"), packed(k, "k"), packed(v, "k")]
    gqa = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
    o, lse = varlen_attn(*inputs, starts(q_lens), starts(kv_lens), int(q_lens.max(initial=0)), int(kv_lens.max(initial=0)),
                         return_aux=AuxRequest(lse=True), scale=case["scale"], window_size=(left, right), **gqa)
    out = {"o": padded(o, "q"), "lse": padded(lse.T, "q", -np.inf)}
    if case["do"] is None:
        return out
    loss = (o * packed(case["do"], "q")).sum()
    if case["dlse"] is not None:
        loss = loss + (lse.T * torch.tensor(case["dlse"].swapaxes(1, 2)[shown["q"]])).sum()
    return out | dict(zip(("dq", "dk", "dv"), map(padded, torch.autograd.grad(loss, inputs), "qkk")))
