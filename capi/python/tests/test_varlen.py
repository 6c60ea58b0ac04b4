"""varlen_attn beside PyTorch's function of each sequence in float64."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import flashkit  # noqa: E402
from flashkit.varlen import varlen_attn  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LSE = SimpleNamespace(lse=True)


def reference(q, k, v, left, right, scale):
    """Return O and LSE of one sequence."""
    n, m = len(q), len(k)
    d = torch.arange(m)[None] - torch.arange(n)[:, None] - (m - n)
    seen = torch.ones(n, m, dtype=torch.bool) & ((d >= -left) if left >= 0 else True) & ((d <= right) if right >= 0 else True)
    q, k, v = (t.transpose(0, 1) for t in (q, k, v))
    k = k.repeat_interleave(len(q) // len(k), 0)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    lse = (q @ k.mT * scale).masked_fill(~seen, float("-inf")).logsumexp(-1)
    return F.scaled_dot_product_attention(q, k, v, seen, scale=scale, enable_gqa=True).transpose(0, 1), lse


@pytest.mark.parametrize("form", ["packed", "used", "paged"])
@pytest.mark.parametrize("number", range(6))
def test_values(rng, number, form):
    r = rng.spawn(number + 1)[-1]
    n, m = r.integers(1, 30, 3), r.integers(1, 30, 3)
    used = m - r.integers(0, m) if form == "used" else m
    draw = lambda *shape: torch.from_numpy(r.standard_normal(shape).astype(np.float32))
    q, kv = draw(n.sum(), 4, 16), draw(2, m.sum(), 2, 16)
    starts, kv_starts = (torch.tensor([0, *np.cumsum(x)], dtype=torch.int32) for x in (n, m))
    left, right = (int(x) for x in r.integers(-1, 9, 2))
    scale = (None, 0.4)[r.integers(2)]
    rest = dict(scale=scale, window_size=(left, right), enable_gqa=True, return_aux=LSE)
    ends = lambda b: slice(kv_starts[b], kv_starts[b] + used[b])
    leaves = [t.to(DEVICE).requires_grad_() for t in (q, *kv)]
    pool, cu_k = leaves[1:], kv_starts.to(DEVICE)
    if form != "packed":
        rest["seqused_k"] = torch.tensor(used, dtype=torch.int32, device=DEVICE)
    if form == "paged":
        table = torch.from_numpy(r.permutation(30)[:24].reshape(3, 8)).int()
        pages, cu_k = draw(2, 30, 4, 2, 16), None
        for x, packed in zip(pages, kv):
            for b in range(3):
                for i in range(m[b]):
                    x[table[b, i // 4], i % 4] = packed[kv_starts[b] + i]
        pool, rest["block_table"] = list(pages.to(DEVICE)), table.to(DEVICE)
    o, lse = varlen_attn(leaves[0], *pool, starts.to(DEVICE), cu_k, int(n.max()), 32, **rest)
    theirs = [t.double().requires_grad_() for t in (q, *kv)]
    parts = [reference(theirs[0][starts[b] : starts[b + 1]], *(t[ends(b)] for t in theirs[1:]), left, right, scale) for b in range(3)]
    want, want_lse = torch.cat([x for x, _ in parts]), torch.cat([x for _, x in parts], 1)
    assert (o.cpu() - want).abs().max() < 2e-5
    assert torch.allclose(lse.cpu().double(), want_lse, rtol=1e-5, atol=1e-5)
    if form != "paged":
        weights = draw(*o.shape)
        got = torch.autograd.grad((o * weights.to(DEVICE)).sum(), leaves)
        for a, b in zip(got, torch.autograd.grad((want * weights).sum(), theirs)):
            assert (a.cpu() - b).abs().max() < 1e-4


def test_signature():
    theirs = pytest.importorskip("torch.nn.attention.varlen")
    names = lambda f: [(x.name, x.kind, x.default) for x in inspect.signature(f).parameters.values()]
    ours, known = names(varlen_attn), names(theirs.varlen_attn)
    newer = ours[len(known) :]  # keywords that an older PyTorch lacks
    assert ours[: len(known)] == known and {x[0] for x in newer} <= {"enable_gqa", "seqused_k", "block_table", "num_splits"}
    q, starts = torch.zeros(3, 2, 16), torch.tensor([0, 3])
    assert len(varlen_attn(q, q, q, starts, starts, 3, 3, return_aux=theirs.AuxRequest(lse=True))) == 2
    assert torch.is_tensor(varlen_attn(q, q, q, starts, starts, 3, 3, return_aux=theirs.AuxRequest(lse=False)))


def test_refused():
    q, starts = torch.zeros(3, 2, 16), torch.tensor([0, 3])
    for field, change in (
        ("key.shape", dict(key=q[:, :1], value=q[:, :1])),
        ("cu_seq_k", dict(cu_seq_k=None)),
        ("seqused_k", dict(block_table=torch.zeros(1, 1, dtype=torch.int32), key=q[None], value=q[None])),
        ("seqused_k[0]", dict(seqused_k=torch.tensor([4]), max_k=5)),
        ("max_q", dict(max_q=2)),
        ("scale", dict(scale=-1.0)),
        ("num_splits", dict(num_splits=-1)),
        ("cu_seq_q[1]", dict(cu_seq_q=starts + starts)),
    ):
        given = dict(query=q, key=q, value=q, cu_seq_q=starts, cu_seq_k=starts, max_q=3, max_k=3) | change
        with pytest.raises(flashkit.Error) as caught:
            varlen_attn(**given)
        assert caught.value.field == field and str(caught.value).startswith(f"flashkit: {field}"), caught.value
