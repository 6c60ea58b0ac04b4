"""The functions with flash-attn's names beside their documented semantics, computed by PyTorch in float64."""

import inspect

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import flashkit  # noqa: E402
import flashkit.flash_attn as fa  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def reference(q, k, v, *, causal, window_size, softcap, slopes, scale, mask=None):
    """Return O of [rows, heads, dim] and LSE of [heads, rows] of one sequence, by the formulas of flash-attn's documentation."""
    n, h, d = q.shape
    m, g, _ = k.shape
    k, v = (t.repeat_interleave(h // g, 1) for t in (k, v))
    s = torch.einsum("nhd,mhd->hnm", q, k) * (d**-0.5 if scale is None else scale)
    if softcap > 0:
        s = softcap * torch.tanh(s / softcap)
    i, j = torch.arange(n)[:, None] + m - n, torch.arange(m)[None]
    if slopes is not None:
        s = s - slopes.double()[:, None, None] * (i - j).abs()
    left, right = window_size[0], 0 if causal else window_size[1]
    hidden = torch.zeros(n, m, dtype=torch.bool)
    if left >= 0:
        hidden |= j < i - left
    if right >= 0:
        hidden |= j > i + right
    if mask is not None:
        hidden |= ~mask
    s = s.masked_fill(hidden, float("-inf"))
    lse = torch.logsumexp(s, -1)
    p = torch.where(hidden, 0.0, torch.exp(s - torch.where(lse.isinf(), 0.0, lse)[..., None]))
    return torch.einsum("hnm,mhd->nhd", p, v), lse


class Problem:
    """Random arguments that all functions have in common."""

    def __init__(self, rng, packed=False):
        pick = lambda *x: x[rng.integers(len(x))]
        self.rng = rng
        self.batch, self.heads = int(rng.integers(1, 4)), pick(2, 4, 6)
        self.kv_heads = self.heads if packed else pick(*(g for g in (1, 2, 3, self.heads) if self.heads % g == 0))
        self.dim = pick(16, 32, 40, 64)
        causal, softcap = bool(rng.integers(2)), pick(0.0, 0.0, 2.0, -1.0)
        window = tuple(int(x) for x in rng.integers(-1, 12, 2)) if rng.integers(2) else (-1, -1)
        slopes = pick(None, self.randn(self.heads), self.randn(self.batch, self.heads))
        self.slopes = None if slopes is None else slopes.abs().float()
        self.given = dict(causal=causal, window_size=window, softcap=softcap, softmax_scale=pick(None, 0.3))

    def randn(self, *shape):
        return torch.from_numpy(self.rng.standard_normal(shape).astype(np.float32))

    def keywords(self):
        return dict(self.given, alibi_slopes=None if self.slopes is None else self.slopes.to(DEVICE))

    def sequence(self, b, q, k, v, mask=None):
        slopes = self.slopes if self.slopes is None or self.slopes.dim() == 1 else self.slopes[b]
        rest = {name: x for name, x in self.given.items() if name != "softmax_scale"}
        return reference(q, k, v, slopes=slopes, scale=self.given["softmax_scale"], mask=mask, **rest)


def near(a, b, by=3e-5):
    assert a.shape == b.shape
    a, b = a.detach().double().cpu(), b.detach()
    finite = b.isfinite()
    assert torch.equal(a[~finite], b[~finite])
    if finite.any():
        assert (a - b)[finite].abs().max() <= by * max(1, b[finite].abs().max()), (a - b)[finite].abs().max()


def check(p, leaves, call, sequences):
    """Compare O, LSE and the gradients of leaves. sequences computes [(O, LSE), ...] from float64 leaves, and joins them."""
    mine = [t.to(DEVICE).requires_grad_() for t in leaves]
    theirs = [t.double().requires_grad_() for t in leaves]
    o, lse, empty = call(*mine)
    want, want_lse = sequences(*theirs)
    near(o, want)
    near(lse, want_lse)
    assert empty.numel() == 0
    weights = p.randn(*want.shape)
    got = torch.autograd.grad((o * weights.to(DEVICE)).sum(), mine)
    for a, b in zip(got, torch.autograd.grad((want * weights.double()).sum(), theirs), strict=True):
        near(a, b, 1e-4)


@pytest.mark.parametrize("form", ["q, k, v", "kvpacked", "qkvpacked"])
@pytest.mark.parametrize("number", range(8))
def test_dense(rng, number, form):
    p = Problem(rng.spawn(number + 1)[-1], form == "qkvpacked")
    n, m = (int(x) for x in p.rng.integers(1, 40, 2))
    q, kv = p.randn(p.batch, n, p.heads, p.dim), p.randn(p.batch, m, 2, p.kv_heads, p.dim)
    leaves, f = {
        "q, k, v": ((q, *kv.unbind(2)), fa.flash_attn_func),
        "kvpacked": ((q, kv), fa.flash_attn_kvpacked_func),
        "qkvpacked": ((p.randn(p.batch, n, 3, p.heads, p.dim),), fa.flash_attn_qkvpacked_func),
    }[form]

    def sequences(*leaves):
        *q, last = leaves
        q, k, v = leaves if form == "q, k, v" else (*q, *last.unbind(2))
        return (torch.stack(x) for x in zip(*(p.sequence(b, q[b], k[b], v[b]) for b in range(p.batch))))

    check(p, leaves, lambda *x: f(*x, return_attn_probs=True, **p.keywords()), sequences)


@pytest.mark.parametrize("form", ["q, k, v", "kvpacked", "qkvpacked"])
@pytest.mark.parametrize("number", range(8))
def test_varlen(rng, number, form):
    p = Problem(rng.spawn(number + 1)[-1], form == "qkvpacked")
    lens, kv_lens = p.rng.integers(0, 30, p.batch), p.rng.integers(0, 30, p.batch)
    starts, kv_starts = (torch.tensor([0, *np.cumsum(x)], dtype=torch.int32) for x in (lens, kv_lens))
    q, kv = p.randn(lens.sum(), p.heads, p.dim), p.randn(kv_lens.sum(), 2, p.kv_heads, p.dim)
    most, kv_most = int(lens.max()), int(kv_lens.max()) + 3
    both = starts.to(DEVICE), kv_starts.to(DEVICE), most, kv_most
    if form == "qkvpacked":
        kv_starts, leaves = starts, (p.randn(lens.sum(), 3, p.heads, p.dim),)
        f, sizes = fa.flash_attn_varlen_qkvpacked_func, (starts.to(DEVICE), most)
    elif form == "kvpacked":
        f, leaves, sizes = fa.flash_attn_varlen_kvpacked_func, (q, kv), both
    else:
        f, leaves, sizes = fa.flash_attn_varlen_func, (q, *kv.unbind(1)), both

    def sequences(*leaves):
        *q, last = leaves
        q, k, v = leaves if form == "q, k, v" else (*q, *last.unbind(1))
        cut = lambda t, starts, b: t[starts[b] : starts[b + 1]]
        parts = [p.sequence(b, cut(q, starts, b), cut(k, kv_starts, b), cut(v, kv_starts, b)) for b in range(p.batch)]
        return torch.cat([o for o, _ in parts]), torch.cat([lse for _, lse in parts], 1)

    check(p, leaves, lambda *x: f(*x, *sizes, return_attn_probs=True, **p.keywords()), sequences)


def rotated(x, cos, sin, first, interleaved, moves):
    """Return x of [rows, heads, dim] in float64, rotated element by element."""
    out, half = x.double().clone(), cos.shape[1]
    for i in range(x.shape[0]):
        for t in range(half):
            a, b = (2 * t, 2 * t + 1) if interleaved else (t, t + half)
            c, s = (float(r[first + (i if moves else 0), t]) for r in (cos, sin))
            out[i, :, a], out[i, :, b] = x[i, :, a] * c - x[i, :, b] * s, x[i, :, b] * c + x[i, :, a] * s
    return out


@pytest.mark.parametrize("number", range(24))
def test_kvcache(rng, number):
    p = Problem(rng.spawn(number + 1)[-1])
    pick = lambda *x: x[p.rng.integers(len(x))]
    n, new, page = int(p.rng.integers(1, 6)), int(p.rng.integers(1, 6)), pick(1, 4, 16)
    paged, indexed, padded, whole = (bool(p.rng.integers(2)) for _ in range(4))
    append, rotary = number % 4 > 0, number % 4 > 1
    indexed, whole = indexed and not paged, whole and not append
    if number % 4 == 2:  # all rows of q are rotated by the same position
        p.given |= {"causal": False, "window_size": (-1, -1)}
    capacity = pick(32, 48)
    pool = p.batch * (capacity // page) + 2 if paged else p.batch + 2
    k_cache, v_cache = (p.randn(pool, page if paged else capacity, p.kv_heads, p.dim) for _ in range(2))
    q, k, v = (p.randn(p.batch, rows, h, p.dim) for rows, h in ((n, p.heads), (new, p.kv_heads), (new, p.kv_heads)))
    order = torch.from_numpy(p.rng.permutation(pool)).int()
    table = order[: p.batch * (capacity // page)].view(p.batch, -1) if paged else None
    index = order[: p.batch] if indexed else None
    lens = torch.from_numpy(p.rng.integers(0, capacity - max(n, new), p.batch)).int()
    first = (lens // 3 if padded else torch.zeros_like(lens)).int()
    interleaved, moves = bool(p.rng.integers(2)), p.given["causal"] or p.given["window_size"] != (-1, -1)
    angles = p.randn(capacity, 8)
    cos, sin = (angles.cos(), angles.sin()) if rotary else (None, None)

    # The cache before the call, as one tensor per sequence
    rows = lambda cache, b: cache[table[b].long()].flatten(0, 1) if paged else cache[index[b] if indexed else b]
    want, want_lse, keys, values = [], [], [], []
    for b in range(p.batch):
        at = capacity if whole else int(lens[b])
        x, y = rows(k_cache, b).double().clone(), rows(v_cache, b).double().clone()
        turned = q[b].double()
        if append:
            x[at : at + new] = rotated(k[b], cos, sin, at, interleaved, True) if rotary else k[b].double()
            y[at : at + new] = v[b].double()
            turned = rotated(q[b], cos, sin, at, interleaved, moves) if rotary else turned
        total = at + new if append else at
        o, lse = p.sequence(b, turned, x[:total], y[:total], mask=torch.arange(total) >= first[b])
        keys, values, want, want_lse = [*keys, x], [*values, y], [*want, o], [*want_lse, lse]
    there = lambda t: None if t is None else t.to(DEVICE)
    mine = k_cache.to(DEVICE), v_cache.to(DEVICE)
    o, lse = fa.flash_attn_with_kvcache(
        there(q), *mine, *((there(k), there(v)) if append else ()), rotary_cos=there(cos), rotary_sin=there(sin),
        cache_seqlens=None if whole else there(lens), cache_batch_idx=there(index), block_table=there(table),
        cache_leftpad=there(first) if padded else None, rotary_interleaved=interleaved, return_softmax_lse=True, **p.keywords(),
    )  # fmt: skip
    near(o, torch.stack(want))
    near(lse, torch.stack(want_lse))
    for b in range(p.batch):
        near(rows(mine[0].cpu(), b), keys[b], 1e-6)
        assert torch.equal(rows(mine[1].cpu(), b).double(), values[b])
    if paged:  # pages outside the table are unchanged
        assert torch.equal(mine[0].cpu()[order[table.numel() :].long()], k_cache[order[table.numel() :].long()])


def test_kvcache_of_one_length(randn):
    q, cache = randn(2, 1, 4, 16, device=DEVICE), randn(3, 20, 2, 16, device=DEVICE)
    o = fa.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=7)
    assert torch.equal(o, fa.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=torch.tensor([7, 7], device=DEVICE)))
    near(o, fa.flash_attn_func(q, cache[:2, :7], cache[:2, :7]).double().cpu())


def test_paged_varlen(rng):
    p = Problem(rng)
    lens = torch.tensor([0, 3, 5, 9], dtype=torch.int32)
    kv = torch.tensor([0, 7, 7, 19], dtype=torch.int32)
    q, pool = p.randn(9, p.heads, p.dim), p.randn(2, 12, 4, p.kv_heads, p.dim)
    table = torch.from_numpy(p.rng.permutation(12)).int().view(3, 4)
    p.slopes = None
    o = fa.flash_attn_varlen_func(*(t.to(DEVICE) for t in (q, *pool, lens, kv)), 4, 12, block_table=table.to(DEVICE), **p.keywords())
    for b in range(3):
        k, v = (x[table[b].long()].flatten(0, 1)[: kv[b + 1] - kv[b]].double() for x in pool)
        near(o[lens[b] : lens[b + 1]], p.sequence(b, q[lens[b] : lens[b + 1]].double(), k, v)[0])


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_types(randn, kind):
    q, k, v = (randn(2, 9, h, 32, dtype=kind) for h in (4, 2, 2))
    o = fa.flash_attn_func(*(t.to(DEVICE) for t in (q, k, v)), causal=True)
    assert o.dtype == kind
    want = [reference(*(t[b].double() for t in (q, k, v)), causal=True, window_size=(-1, -1), softcap=0, slopes=None, scale=None)[0] for b in range(2)]
    near(o, torch.stack(want), 2e-2 if kind == torch.bfloat16 else 3e-3)


def test_dropout(randn):
    q = randn(1, 64, 2, 16, device=DEVICE)
    draw = lambda: fa.flash_attn_func(q, q, q, dropout_p=0.5)
    torch.manual_seed(3)
    first, second = draw(), draw()
    torch.manual_seed(3)
    assert torch.equal(first, draw()) and not torch.equal(first, second)


def test_signatures():
    """The names, order and defaults of flash-attn 2.8's arguments."""
    rest = "dropout_p=0.0 softmax_scale=None causal=False window_size=(-1,-1) softcap=0.0 alibi_slopes=None deterministic=False return_attn_probs=False"
    both = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
    cache = "k=None v=None rotary_cos=None rotary_sin=None cache_seqlens=None cache_batch_idx=None cache_leftpad=None block_table=None"
    want = {
        "flash_attn_func": f"q k v {rest}",
        "flash_attn_kvpacked_func": f"q kv {rest}",
        "flash_attn_qkvpacked_func": f"qkv {rest}",
        "flash_attn_varlen_func": f"q k v {both} {rest} block_table=None",
        "flash_attn_varlen_kvpacked_func": f"q kv {both} {rest}",
        "flash_attn_varlen_qkvpacked_func": f"qkv cu_seqlens max_seqlen {rest}",
        "flash_attn_with_kvcache": f"q k_cache v_cache {cache} softmax_scale=None causal=False window_size=(-1,-1) softcap=0.0 "
        "rotary_interleaved=True alibi_slopes=None num_splits=0 return_softmax_lse=False",
    }
    for name, text in want.items():
        empty = inspect.Parameter.empty
        found = [x.name + ("" if x.default is empty else f"={x.default}".replace(" ", "")) for x in inspect.signature(getattr(fa, name)).parameters.values()]
        assert found == text.split(), name
    assert sorted(want) == fa.__all__


def test_compile(randn):
    q, k, v = (randn(2, 9, 2, 16).requires_grad_() for _ in range(3))
    f = torch.compile(lambda *x: fa.flash_attn_func(*x, causal=True, window_size=(4, -1)), fullgraph=True, backend="aot_eager")
    want = fa.flash_attn_func(q, k, v, causal=True, window_size=(4, 9))
    assert torch.equal(f(q, k, v), want)


Q, CACHE, STARTS = torch.zeros(2, 3, 4, 16), torch.zeros(2, 8, 2, 16), torch.tensor([0, 2, 3])
NEW = torch.ones(2, 2, 2, 16), torch.ones(2, 2, 2, 16), None, None, 3
REFUSED = [
    (lambda: fa.flash_attn_func(Q[0], Q, Q), flashkit.DimensionError, "q.shape"),
    (lambda: fa.flash_attn_func(Q, Q[..., :8], Q), flashkit.DimensionError, "k.shape"),
    (lambda: fa.flash_attn_func(Q, Q[:, :, :3], Q[:, :, :3]), flashkit.DimensionError, "k.shape"),
    (lambda: fa.flash_attn_func(Q, Q, Q.numpy()), flashkit.DTypeError, "v"),
    (lambda: fa.flash_attn_func(Q, Q, Q, dropout_p=1.0), flashkit.OptionError, "dropout_p"),
    (lambda: fa.flash_attn_func(Q, Q, Q, softmax_scale=0.0), flashkit.OptionError, "softmax_scale"),
    (lambda: fa.flash_attn_func(Q, Q, Q, softcap="1"), flashkit.OptionError, "softcap"),
    (lambda: fa.flash_attn_func(Q, Q, Q, softcap=float("nan")), flashkit.OptionError, "softcap"),
    (lambda: fa.flash_attn_func(Q, Q, Q, causal="no"), flashkit.OptionError, "causal"),
    (lambda: fa.flash_attn_func(Q, Q, Q, window_size=(-2, 0)), flashkit.OptionError, "window_size"),
    (lambda: fa.flash_attn_func(Q, Q, Q, window_size=4), flashkit.OptionError, "window_size"),
    (lambda: fa.flash_attn_func(Q, Q, Q, alibi_slopes=torch.zeros(3)), flashkit.DimensionError, "alibi_slopes.shape"),
    (lambda: fa.flash_attn_func(Q, Q, Q, deterministic=2), flashkit.OptionError, "deterministic"),
    (lambda: fa.flash_attn_func(Q, Q, Q, dropout_p=0.1, return_attn_probs=True), flashkit.UnsupportedError, "return_attn_probs"),
    (lambda: fa.flash_attn_qkvpacked_func(Q), flashkit.DimensionError, "qkv.shape"),
    (lambda: fa.flash_attn_qkvpacked_func(Q.new_zeros(1, 2, 3, 4, 8).double()), flashkit.DTypeError, "qkv.dtype"),
    (lambda: fa.flash_attn_varlen_func(Q[0], Q[0], Q[0], STARTS, STARTS + 2, 3, 3), flashkit.OptionError, "cu_seqlens_k[1]"),
    (lambda: fa.flash_attn_varlen_func(Q[0], Q[0], Q[0], STARTS, STARTS[:2], 3, 3), flashkit.DimensionError, "cu_seqlens_k.shape"),
    (lambda: fa.flash_attn_varlen_func(Q[0], Q[0], Q[0], STARTS, STARTS, 1, 3), flashkit.OptionError, "max_seqlen_q"),
    (lambda: fa.flash_attn_varlen_func(Q[0], Q[0], Q[0], STARTS.float(), STARTS, 3, 3), flashkit.DTypeError, "cu_seqlens_q.dtype"),
    (lambda: fa.flash_attn_varlen_qkvpacked_func(Q[:, :2], STARTS, 3), flashkit.DimensionError, "qkv.shape"),
    (lambda: fa.flash_attn_with_kvcache(Q, CACHE, CACHE, CACHE), flashkit.NullError, "v"),
    (lambda: fa.flash_attn_with_kvcache(Q, CACHE, CACHE, CACHE, CACHE), flashkit.NullError, "cache_seqlens"),
    (lambda: fa.flash_attn_with_kvcache(Q, CACHE, CACHE, rotary_cos=Q), flashkit.NullError, "k"),
    (lambda: fa.flash_attn_with_kvcache(Q, CACHE, CACHE, CACHE[:, :2], CACHE[:, :2], cache_seqlens=7), flashkit.OptionError, "cache_seqlens"),
    (lambda: fa.flash_attn_with_kvcache(Q, CACHE, CACHE, cache_seqlens=torch.tensor([3, 9])), flashkit.OptionError, "cache_seqlens[1]"),
    (lambda: fa.flash_attn_with_kvcache(Q, CACHE, CACHE, cache_batch_idx=torch.tensor([0, 2])), flashkit.OptionError, "cache_batch_idx[1]"),
    (lambda: fa.flash_attn_with_kvcache(Q, CACHE, CACHE, cache_seqlens=9, block_table=torch.tensor([[0, 1], [0, -1]])), flashkit.OptionError, "block_table[1, 1]"),
    (lambda: fa.flash_attn_with_kvcache(Q, CACHE.half(), CACHE.half()), flashkit.DTypeError, "k_cache.dtype"),
    (lambda: fa.flash_attn_with_kvcache(Q, CACHE[:1], CACHE[:1]), flashkit.DimensionError, "k_cache.shape"),
    (lambda: fa.flash_attn_with_kvcache(Q.clone().requires_grad_(), CACHE, CACHE), flashkit.OptionError, "q"),
    (lambda: fa.flash_attn_with_kvcache(Q, CACHE, CACHE, *NEW, softmax_scale=-1.0), flashkit.OptionError, "softmax_scale"),
    (lambda: fa.flash_attn_with_kvcache(Q, CACHE, CACHE, *NEW, alibi_slopes=torch.zeros(3, 4)), flashkit.DimensionError, "alibi_slopes.shape"),
    (lambda: fa.flash_attn_with_kvcache(Q[:, :, :3], CACHE, CACHE, *NEW), flashkit.DimensionError, "k_cache.shape"),
    (lambda: fa.flash_attn_with_kvcache(Q, CACHE, CACHE, num_splits=-1), flashkit.OptionError, "num_splits"),
    (lambda: fa.flash_attn_with_kvcache(Q, CACHE, CACHE, CACHE, CACHE, torch.zeros(8, 4), None, 0), flashkit.NullError, "rotary_sin"),
    (lambda: fa.flash_attn_with_kvcache(Q, CACHE, CACHE, CACHE[:, :2], CACHE[:, :2], *torch.zeros(2, 4, 4), 6), flashkit.DimensionError, "rotary_cos.shape"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refused(number):
    call, error, field = REFUSED[number]
    with pytest.raises(error) as caught:
        call()
    assert caught.value.field == field and str(caught.value).startswith(f"flashkit: {field}"), caught.value
    assert not CACHE.any()
