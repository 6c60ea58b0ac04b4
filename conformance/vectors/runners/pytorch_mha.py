"""PyTorch on the CPU: the fast path of nn.MultiheadAttention, which is for inference. Install: torch, numpy."""

import numpy as np
import torch

import judge

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
torch.set_num_threads(1)


@judge.runner(f"PyTorch {torch.__version__.split('+')[0]} MultiheadAttention, fast path", "gqa v_dim window top_left shift mask ragged")
@torch.no_grad()
def attention(q, k, v, **case):
    if not all(np.isfinite(x).all() for x in (q, k, v)):
        raise judge.Unsupported("the projections mix the elements of a row, so no NaN or infinity")
    batch, heads, dim, rows = case["batch"], case["heads"], max(case["dim"], case["v_dim"]), max(case["q_len"], case["kv_len"])
    if 0 in (batch, dim, rows):
        raise judge.Unsupported("no empty tensors")
    k, v = (np.repeat(x, heads // case["kv_heads"], axis=1) for x in (k, v))
    # Queries, keys and values are parts of one input. The weights select these parts, and undo the scale of a head dim that is 4 times larger.
    size, wide = heads * 4 * dim, np.zeros((3, batch, rows, heads, 4 * dim), np.float32)
    for part, x in zip(wide, (q, k, v)):
        part[:, : x.shape[2], :, : x.shape[3]] = x.swapaxes(1, 2)
    twice = 2.0 * (dim / case["dim"]) ** 0.5
    if twice not in (2.0, 4.0):
        raise judge.Unsupported("no scale that is not a power of 2 here")
    column = np.arange(size).reshape(heads, 4 * dim)[:, :dim].ravel()
    x = np.concatenate([part.reshape(batch, rows, size)[:, :, column] for part in wide], axis=2)
    x = np.pad(x, ((0, 0), (0, 0), (0, size - x.shape[2])))
    weight = np.zeros((3 * size, size), np.float32)
    for i in range(3):
        weight[i * size + column, i * len(column) + np.arange(len(column))] = twice if i == 0 else 1
    mask = np.zeros((batch, heads, rows, rows), bool)
    shown = judge.visible(case)
    mask[:, :, :, case["kv_len"]:] = True
    if shown is not None:
        mask[:, :, : case["q_len"], : case["kv_len"]] |= ~shown
    tensor = lambda x: torch.tensor(x).to(DTYPES[case["dtype"]])
    x, mask = tensor(x), torch.tensor(mask) if mask.any() else None
    o, _ = torch._native_multi_head_attention(
        x, x, x, size, heads, tensor(weight), tensor(np.zeros(3 * size)), tensor(np.eye(size)), tensor(np.zeros(size)), mask, False, True, None if mask is None else 2)
    o = o.float().numpy().reshape(batch, rows, heads, 4 * dim).swapaxes(1, 2)
    return {"o": np.ascontiguousarray(o[:, :, : case["q_len"], : case["v_dim"]])}
