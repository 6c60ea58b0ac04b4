"""KVCache: a small model that decodes step by step, beside the computation of the whole text."""

import copy
import doctest
import gc
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import flashkit

HEADS, KV, DIM, LAYERS, CAPACITY = 4, 2, 32, 2, 32
BOUNDS = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2, "int8": 8e-2}
FORMS = [(dtype, page) for dtype in BOUNDS for page in (0, 4)]


class Model:
    """Layers of attention with a residual connection. Rows are [batch, tokens, HEADS * DIM]."""

    def __init__(self, rng):
        width = HEADS * DIM
        self.layers = [[rng.standard_normal((width, n * DIM)).astype(np.float32) / width**0.5 for n in (HEADS, KV, KV)] for _ in range(LAYERS)]

    def run(self, x, attend):
        for i, weights in enumerate(self.layers):
            q, k, v = ((x @ w).reshape(*x.shape[:2], -1, DIM) for w in weights)
            x = x + attend(i, q, k, v).reshape(x.shape)
        return x

    def whole(self, x):
        return self.run(x, lambda i, q, k, v: flashkit.attention(q, k, v, causal=True, layout="bshd"))

    def decode(self, x, caches, lens=None, shared=False):
        """Return the rows of the next tokens of each sequence."""

        def attend(i, q, k, v):
            c = caches[i]
            c.append(k, v, lens, layout="bshd")
            o = flashkit.attention(q.swapaxes(1, 2), c.k, c.v, causal=True, q_lens=lens, **c.keywords(shared=shared))
            return o.swapaxes(1, 2)

        return self.run(x, attend)


def make(batch, dtype, page, **more):
    return [flashkit.KVCache(batch, KV, CAPACITY, DIM, dtype=dtype, page=page, **more) for _ in range(LAYERS)]


@pytest.fixture
def model(rng):
    return Model(rng)


def text(rng, *shape):
    return rng.standard_normal((*shape, HEADS * DIM)).astype(np.float32)


@pytest.mark.parametrize("dtype,page", FORMS)
def test_decodes(rng, model, dtype, page):
    x, caches = text(rng, 2, 13), make(2, dtype, page)
    want, at = model.whole(x), 0
    for n in (5, 1, 1, 3, 1, 2):
        got = model.decode(x[:, at : at + n], caches)
        assert np.abs(got - want[:, at : at + n]).max() < BOUNDS[dtype]
        at += n
        assert caches[0].lens.tolist() == caches[1].next.tolist() == [at, at]


@pytest.mark.parametrize("dtype,page", FORMS)
def test_forks(rng, model, dtype, page):
    """Sequences continue one prompt in different ways."""
    prompt, others = text(rng, 1, 10), text(rng, 3, 6)
    caches, shared = make(3, dtype, page), page > 0 and dtype != "int8"
    model.decode(np.repeat(prompt, 3, 0), caches, lens=[10, 0, 0])
    for c in caches:
        free = c.free_pages
        c.fork(0, 1), c.fork(0, 2)
        assert c.free_pages == free  # they share all pages
        assert ("prefix" in c.keywords(shared=True)) == shared if dtype != "int8" else True
    want = model.whole(np.concatenate([np.repeat(prompt, 3, 0), others], 1))[:, 10:]
    for i in range(6):
        got = model.decode(others[:, i : i + 1], caches, shared=shared)
        assert np.abs(got[:, 0] - want[:, i]).max() < BOUNDS[dtype]
    for c in caches:
        c.truncate(1, 12), c.remove(2)
        assert c.lens.tolist() == [16, 12, 0] and c.next.tolist() == [16, 12, 0]
    again = model.decode(others[1:2, 2:3].repeat(3, 0), caches, lens=[0, 1, 0])
    assert np.abs(again[1, 0] - want[1, 2]).max() < BOUNDS[dtype]
    for c in caches:
        c.reset()
        assert c.lens.tolist() == [0, 0, 0] and c.free_pages == (3 * CAPACITY // 4 if page else 0)


@pytest.mark.parametrize("dtype,page", FORMS)
def test_evicts(rng, dtype, page):
    """A key that was evicted has no influence, and a shared page no longer changes with the other sequence."""
    k, v = rng.standard_normal((2, 1, KV, 14, DIM)).astype(np.float32)
    q = rng.standard_normal((2, HEADS, 1, DIM)).astype(np.float32)
    c = flashkit.KVCache(2, KV, CAPACITY, DIM, dtype=dtype, page=page)
    c.append(np.repeat(k, 2, 0), np.repeat(v, 2, 0), [14, 0])
    c.fork(0, 1)
    c.evict(1, 3, 9)
    assert c.lens.tolist() == [14, 8] and c.next.tolist() == [14, 14]
    got = flashkit.attention(q, c.k, c.v, **c.keywords())
    for b, rest in enumerate((np.arange(14), np.r_[0:3, 9:14])):
        want = flashkit.attention(q[b : b + 1], k[:, :, rest], v[:, :, rest])
        assert np.abs(got[b] - want[0]).max() < BOUNDS[dtype]


def test_int8_is_quantized(rng):
    """Each group's scale is its largest magnitude / 127."""
    k = rng.standard_normal((2, KV, 3, 64)).astype(np.float32)
    for group, scales in ((0, "float32"), (32, "float16")):
        c = flashkit.KVCache(2, KV, 8, 64, dtype="int8", int8group=group, scales=scales)
        c.append(k, 2 * k)
        words, groups = c.keywords(), k.reshape(2, KV, 3, -1, group or 64)
        assert c.k.dtype == np.int8 and words["kscale"].dtype == scales and np.abs(c.k[:, :, :3]).max() == 127
        np.testing.assert_allclose(words["kscale"][:, :, :3], np.abs(groups).max(-1) / 127, rtol=1e-3)
        back = c.v[:, :, :3].reshape(groups.shape) * words["vscale"][:, :, :3, :, None].astype(np.float32)
        assert np.abs(back - 2 * groups).max() <= np.abs(groups).max() / 120


def test_full_pages_are_shared(rng):
    """Sequences without keys of their own after the shared pages."""
    c = flashkit.KVCache(2, KV, 8, DIM, page=4)
    k, v = rng.standard_normal((2, 2, KV, 8, DIM)).astype(np.float32)
    c.append(k, v, [8, 0])
    c.fork(0, 1)
    q = rng.standard_normal((2, HEADS, 1, DIM)).astype(np.float32)
    words = c.keywords(shared=True)
    assert words["pages"].shape == (2, 0) and words["prefix"][3] == 8 and words["kv_lens"].tolist() == [0, 0]
    want = flashkit.attention(q, k[:1].repeat(2, 0), v[:1].repeat(2, 0))
    assert np.abs(flashkit.attention(q, c.k, c.v, causal=True, **words) - want).max() < 1e-5


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
def test_torch(randn, kind):
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, kind)
    q, k, v = randn(2, HEADS, 3, DIM, dtype=dtype), randn(2, KV, 3, DIM, dtype=dtype), randn(2, KV, 3, DIM, dtype=dtype)
    c = flashkit.KVCache(2, KV, 8, DIM, dtype=kind, page=4)
    c.append(k, v)
    got = flashkit.attention(q, c.k, c.v, causal=True, **c.keywords())
    assert got.dtype == dtype
    torch.testing.assert_close(got, flashkit.attention(q, k, v, causal=True), atol=1e-5, rtol=1e-2)
    k.requires_grad_()
    with pytest.raises(flashkit.OptionError, match="k: requires a gradient"):
        c.append(k, v)


def rows(n=1, batch=2, heads=KV, dim=DIM, dtype=np.float32):
    return np.zeros((batch, heads, n, dim), dtype)


WRONG = [
    (lambda c: c.append(rows(9), rows(9)), flashkit.OptionError, "lens[0]"),
    (lambda c: c.append(rows(7), rows(7)), flashkit.OptionError, "pages"),
    (lambda c: c.append(rows(2), rows(3)), flashkit.DimensionError, "v.shape"),
    (lambda c: c.append(rows(batch=1), rows(batch=1)), flashkit.DimensionError, "k.shape"),
    (lambda c: c.append(rows(heads=1), rows(heads=1)), flashkit.DimensionError, "k.shape"),
    (lambda c: c.append(rows(dim=8), rows(dim=8)), flashkit.HeadDimError, "k.shape"),
    (lambda c: c.append(rows(dtype=np.int8), rows()), flashkit.DTypeError, "k.dtype"),
    (lambda c: c.append(rows(dtype=np.uint16), rows()), flashkit.DTypeError, "k.dtype"),
    (lambda c: c.append(rows(dtype=np.float64), rows()), flashkit.DTypeError, "k.dtype"),
    (lambda c: c.append(None, rows()), flashkit.DTypeError, "k"),
    (lambda c: c.append(rows(), rows(), [1]), flashkit.DimensionError, "lens.shape"),
    (lambda c: c.append(rows(), rows(), [0, 2]), flashkit.OptionError, "lens[1]"),
    (lambda c: c.append(rows(), rows(), [0, -1]), flashkit.OptionError, "lens[1]"),
    (lambda c: c.append(rows(), rows(), layout="hbsd"), flashkit.OptionError, "layout"),
    (lambda c: c.truncate(2, 0), flashkit.OptionError, "seq"),
    (lambda c: c.truncate(0, 2), flashkit.OptionError, "length"),
    (lambda c: c.remove(-1), flashkit.OptionError, "seq"),
    (lambda c: c.remove(True), flashkit.OptionError, "seq"),
    (lambda c: c.fork(0, 2), flashkit.OptionError, "to"),
    (lambda c: c.fork(0, 2**63), flashkit.OptionError, "to"),
    (lambda c: c.evict(0, 2, 2), flashkit.OptionError, "start"),
    (lambda c: c.evict(0, 1, 0), flashkit.OptionError, "stop"),
    (lambda c: flashkit.KVCache(0, KV, 8, DIM), flashkit.DimensionError, "batch"),
    (lambda c: flashkit.KVCache(1, 0, 8, DIM), flashkit.DimensionError, "heads"),
    (lambda c: flashkit.KVCache(1, KV, 2**62, DIM), flashkit.DimensionError, "capacity"),
    (lambda c: flashkit.KVCache(1, KV, 8, 0), flashkit.DimensionError, "dim"),
    (lambda c: flashkit.KVCache(1, KV, 8, DIM, page=3), flashkit.OptionError, "page"),
    (lambda c: flashkit.KVCache(1, KV, 8, DIM, pages=3), flashkit.OptionError, "pages"),
    (lambda c: flashkit.KVCache(1, KV, 8, DIM, dtype="int8", int8group=33), flashkit.OptionError, "int8group"),
    (lambda c: flashkit.KVCache(1, KV, 8, DIM, dtype="int8", scales="bfloat16"), flashkit.OptionError, "scales"),
    (lambda c: flashkit.KVCache(1, KV, 8, DIM, dtype=np.float32), flashkit.DTypeError, "dtype"),
    (lambda c: flashkit.KVCache(1.5, KV, 8, DIM), flashkit.OptionError, "batch"),
    (lambda c: flashkit.KVCache(1, KV, 8, DIM, dtype="int8").keywords(shared=True), flashkit.UnsupportedError, "shared"),
]


@pytest.mark.parametrize("call,error,field", WRONG)
def test_refused(call, error, field):
    c = flashkit.KVCache(2, KV, 8, DIM, page=4, pages=3)
    c.append(rows(), rows())
    with pytest.raises(error) as caught:
        call(c)
    assert caught.value.field == field and str(caught.value).startswith(f"flashkit: {field}"), str(caught.value)
    assert c.lens.tolist() == [1, 1] and c.free_pages == 1


def test_handles():
    c = flashkit.KVCache(1, KV, 8, DIM)
    assert copy.copy(c) is c and copy.deepcopy(c) is c
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="KVCache cannot be pickled"):
            pickle.dumps(c, protocol)
    k = c.k
    assert not k.flags.writeable and repr(c) == "<KVCache of 1 sequences in float32>"
    c.append(rows(batch=1) + 7, rows(batch=1))
    del c
    gc.collect()
    assert (k[:, :, 0] == 7).all()  # the view keeps the memory
    empty = flashkit.KVCache.__new__(flashkit.KVCache)
    repr(empty)
    with pytest.raises(flashkit.HandleError):
        empty.remove(0)


def test_threads():
    """Threads that change one cache at once change it one after the other."""
    c, k = flashkit.KVCache(4, KV, 64, DIM, page=4, dtype="int8"), rows(batch=4)

    def work(seq):
        for i in range(60):
            c.append(k, k, np.eye(4, dtype=np.int32)[seq])
            assert c.lens[seq] == i % 30 + 1
            if i == 29:
                c.remove(seq)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert c.lens.tolist() == [30] * 4 and c.free_pages == 4 * 16 - 4 * 8


def test_out_of_memory():
    """A cache that does not fit is refused, and its memory is free again at once."""
    code = """
import resource, flashkit
flashkit.KVCache(1, 1, 8, 64)
size = 4096 * int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (size + 3 * 2**30, -1))
for _ in range(9):
    c = flashkit.KVCache(1, 8, 2**18, 128)  # 2 GiB
    del c
    try:
        flashkit.KVCache(1, 8, 2**18, 128, dtype="float16", page=64, pages=2**14), flashkit.KVCache(1, 8, 2**17 * 3, 128)
    except flashkit.OutOfMemoryError as e:
        text = str(e)
print(text)
"""
    r = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert r.stdout == "flashkit: no memory for the cache\n", r.stderr


def test_docstring(rng):
    q, k, v = (rng.standard_normal((2, h, 5, 128)).astype(np.float32) for h in (16, 8, 8))
    code = flashkit.KVCache.__doc__.split("\n\n")[1]
    names = {"flashkit": flashkit, "q": q, "k": k, "v": v}
    exec(doctest.script_from_examples("".join(f">>> {line.strip()}\n" for line in code.splitlines())), names)
    assert names["o"].shape == q.shape
