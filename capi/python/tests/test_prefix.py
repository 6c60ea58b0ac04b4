"""attention with a prefix that all sequences share, beside a call over all keys."""

import numpy as np
import pytest

import flashkit

B, H, G, N, P, M, D, PAGE = 5, 6, 2, 2, 21, 9, 16, 4


def arrays(rng, *shapes, dtype=np.float32):
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


def problem(rng, dtype=np.float32):
    """Return q, the keys and values of the prefix, and the others."""
    return arrays(rng, (B, H, N, D), (1, G, P, D), (1, G, P, D), (B, G, M, D), (B, G, M, D), dtype=dtype)


def joined(first, rest):
    return np.concatenate([np.broadcast_to(first, (B, *first.shape[1:])), rest], axis=2)


def paged(rng, x, lens):
    """Return a pool with the keys of x, [sequences, heads, n, row], in random pages, and the page table."""
    width = -(-x.shape[2] // PAGE)
    table = rng.permutation(len(x) * width + 2)[: len(x) * width].reshape(len(x), width)
    pool = np.full((len(x) * width + 2, x.shape[1], PAGE, x.shape[3]), np.nan, x.dtype)
    for b, n in enumerate(lens):
        for i in range(n):
            pool[table[b, i // PAGE], :, i % PAGE] = x[b, :, i]
    return pool, table.astype(np.int32)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"softcap": 2.0, "causal": True}, {"sink": np.arange(H, dtype=np.float32)}])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_equals_one_call(rng, options, dtype):
    q, pk, pv, k, v = problem(rng, dtype)
    want = flashkit.attention(q, joined(pk, k), joined(pv, v), return_lse=True, **options)
    got = flashkit.attention(q, k, v, prefix=(pk, pv), return_lse=True, **options)
    for x, y in zip(got, want):
        assert np.abs(x.astype(np.float64) - y).max() < (1e-5 if dtype == np.float32 else 5e-3)
    alone = flashkit.attention(q, k, v, prefix=(pk, pv), **options)
    assert (alone == got[0]).all()
    out = np.empty_like(q)
    assert flashkit.attention(q, k, v, prefix=(pk, pv), out=out, **options) is out and (out == alone).all()


def test_pages_and_lengths(rng):
    q, pk, pv, k, v = problem(rng)
    lens = rng.integers(N, M + 1, B)
    want = flashkit.attention(q, joined(pk, k), joined(pv, v), kv_lens=lens + P, causal=True)
    state = rng.bit_generator.state
    pool_k, table = paged(rng, k, lens)
    rng.bit_generator.state = state
    pool_v, _ = paged(rng, v, lens)
    state = rng.bit_generator.state
    first_k, first = paged(rng, pk, [P])
    rng.bit_generator.state = state
    first_v, _ = paged(rng, pv, [P])
    prefix = first_k, first_v, first[0], P
    for words in ({"prefix": (pk, pv)}, {"prefix": prefix}):
        assert np.abs(flashkit.attention(q, k, v, kv_lens=lens, causal=True, **words) - want).max() < 1e-5
        assert np.abs(flashkit.attention(q, pool_k, pool_v, kv_lens=lens, pages=table, causal=True, **words) - want).max() < 1e-5
    turned = [x.swapaxes(1, 2) for x in (q, k, v, pk, pv)]
    got = flashkit.attention(*turned[:3], kv_lens=lens, causal=True, layout="bshd", prefix=tuple(turned[3:]))
    assert np.abs(got.swapaxes(1, 2) - want).max() < 1e-5


def test_torch(randn):
    torch = pytest.importorskip("torch")
    q, pk, pv, k, v = randn(B, H, 1, D), randn(1, G, P, D), randn(1, G, P, D), randn(B, G, M, D), randn(B, G, M, D)
    want = flashkit.attention(q, torch.cat([pk.expand(B, -1, -1, -1), k], 2), torch.cat([pv.expand(B, -1, -1, -1), v], 2))
    torch.testing.assert_close(flashkit.attention(q, k, v, prefix=(pk, pv)), want, atol=1e-5, rtol=0)
    pk.requires_grad_()
    with pytest.raises(flashkit.OptionError, match="requires a gradient") as caught:
        flashkit.attention(q, k, v, prefix=(pk, pv))
    assert caught.value.field == "prefix[0]"
    with torch.no_grad():
        flashkit.attention(q, k, v, prefix=(pk, pv))


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


K, POOL = zeros(1, G, P, D), zeros(3, G, PAGE, D)
WRONG = [
    ("not a pair", {"prefix": K}, flashkit.OptionError, "prefix"),
    ("three", {"prefix": (K, K, [0])}, flashkit.OptionError, "prefix"),
    ("none", {"prefix": (None, K)}, flashkit.DTypeError, "prefix[0]"),
    ("v", {"prefix": (K, zeros(1, G, P - 1, D))}, flashkit.DimensionError, "prefix[1].shape"),
    ("batch", {"prefix": (zeros(2, G, P, D), K)}, flashkit.DimensionError, "prefix[0].shape"),
    ("dim", {"prefix": (zeros(1, G, P, 8), K)}, flashkit.HeadDimError, "prefix[0].shape"),
    ("dtype", {"prefix": (zeros(1, G, P, D, dtype=np.float16), K)}, flashkit.DTypeError, "prefix[0].dtype"),
    ("int8", {"prefix": (zeros(1, G, P, D, dtype=np.int8), K)}, flashkit.DTypeError, "prefix[0].dtype"),
    ("strides", {"prefix": (K, K[:, :, ::-1])}, flashkit.StrideError, "prefix[1].strides[2]"),
    ("page", {"prefix": (POOL, POOL, [0, 3], 8)}, flashkit.OptionError, "prefix[2][1]"),
    ("page below 0", {"prefix": (POOL, POOL, [-1], 4)}, flashkit.OptionError, "prefix[2][0]"),
    ("float pages", {"prefix": (POOL, POOL, [0.5], 4)}, flashkit.DTypeError, "prefix[2].dtype"),
    ("keys", {"prefix": (POOL, POOL, [0, 1], 9)}, flashkit.OptionError, "prefix[3]"),
    ("keys below 0", {"prefix": (POOL, POOL, [0, 1], -1)}, flashkit.OptionError, "prefix[3]"),
    ("bias", {"prefix": (K, K), "bias": zeros(M)}, flashkit.UnsupportedError, "prefix"),
    ("dropout", {"prefix": (K, K), "dropout": 0.5}, flashkit.UnsupportedError, "prefix"),
    ("window", {"prefix": (K, K), "window": (2, 2)}, flashkit.UnsupportedError, "prefix"),
    ("few keys", {"prefix": (K, K), "kv_lens": [0] * B, "causal": True}, flashkit.UnsupportedError, "prefix"),
]


@pytest.mark.parametrize("changes,error,field", [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_refused(changes, error, field):
    out = np.full((B, H, N, D), 42, np.float32)
    with pytest.raises(error) as caught:
        flashkit.attention(zeros(B, H, N, D), zeros(B, G, M, D), zeros(B, G, M, D), out=out, **changes)
    assert type(caught.value) is error and caught.value.field == field and str(caught.value).startswith(f"flashkit: {field}"), str(caught.value)
    assert (out == 42).all()
    with pytest.raises(TypeError, match="prefix"):
        flashkit.attention_backward(out, out, K, K, out, zeros(B, H, N), **changes)
