"""What is refused: the class, its field, and that nothing was written."""

import os
import pickle
import threading

import numpy as np
import pytest

import flashkit


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


Q, K, V = zeros(1, 2, 3, 8), zeros(1, 2, 5, 8), zeros(1, 2, 5, 8)
WRONG = [
    ("k", {"k": zeros(1, 2, 5, 16)}, flashkit.HeadDimError, "k.shape"),
    ("kv_heads", {"k": zeros(1, 3, 5, 8), "v": zeros(1, 3, 5, 8)}, flashkit.DimensionError, "kv_heads"),
    ("v", {"v": zeros(1, 2, 4, 8)}, flashkit.DimensionError, "v.shape"),
    ("dims", {"q": zeros(2, 3, 8)}, flashkit.DimensionError, "q.shape"),
    ("float64", {"q": zeros(1, 2, 3, 8, dtype=np.float64)}, flashkit.DTypeError, "q.dtype"),
    ("uint16", {"q": zeros(1, 2, 3, 8, dtype=np.uint16)}, flashkit.DTypeError, "q.dtype"),
    ("big endian", {"q": zeros(1, 2, 3, 8, dtype=">f4")}, flashkit.DTypeError, "q.dtype"),
    ("list", {"q": [[1.0]]}, flashkit.DTypeError, "q"),
    ("types", {"k": zeros(1, 2, 5, 8, dtype=np.float16)}, flashkit.DTypeError, None),
    ("rows", {"q": zeros(1, 2, 3, 16)[..., ::2]}, flashkit.StrideError, "q.strides[3]"),
    ("backwards", {"q": Q[:, ::-1]}, flashkit.StrideError, "q.strides[1]"),
    ("overlap", {"out": Q}, flashkit.OverlapError, None),
    ("read-only", {"out": np.broadcast_to(zeros(8), Q.shape)}, flashkit.OptionError, "out"),
    ("out", {"out": zeros(1, 2, 4, 8)}, flashkit.DimensionError, "out.shape"),
    ("window", {"window": 3}, flashkit.OptionError, "window"),
    ("window side", {"window": (-2, 0)}, flashkit.OptionError, "window"),
    ("window number", {"window": (1.5, 0)}, flashkit.OptionError, "window"),
    ("causal window", {"window": (2, 2), "causal": True}, flashkit.OptionError, "window"),
    ("scale", {"scale": 0.0}, flashkit.OptionError, "scale"),
    ("softcap", {"softcap": -1.0}, flashkit.OptionError, "softcap"),
    ("dropout", {"dropout": 1.0}, flashkit.OptionError, "dropout"),
    ("origin", {"dropout": 0.5, "origin": (0, 0, -1, 0)}, flashkit.OptionError, "origin"),
    ("origin key", {"dropout": 0.5, "origin": (0, 0, 0, 12)}, flashkit.OptionError, "origin"),
    ("origin alone", {"origin": (0, 0, 0, 0)}, flashkit.OptionError, "origin"),
    ("seed", {"seed": -1}, flashkit.OptionError, "seed"),
    ("bias", {"bias": zeros(1, 2, 3, 4)}, flashkit.DimensionError, "bias.shape"),
    ("mask", {"mask": zeros(3, 5)}, flashkit.DTypeError, "mask.dtype"),
    ("slopes", {"slopes": zeros(3)}, flashkit.DimensionError, "slopes.shape"),
    ("sink", {"sink": zeros(1, 2)}, flashkit.DimensionError, "sink.shape"),
    ("q_lens", {"q_lens": [4]}, flashkit.OptionError, "q_lens[0]"),
    ("kv_lens", {"kv_lens": [-1]}, flashkit.OptionError, "kv_lens[0]"),
    ("float lens", {"kv_lens": [1.5]}, flashkit.DTypeError, "kv_lens.dtype"),
    ("two counts", {"q_lens": [3], "kv_lens": [1, 2]}, flashkit.DimensionError, "kv_lens"),
    ("starts", {"q_starts": [0, 9]}, flashkit.OptionError, "q_starts[1]"),
    ("no starts", {"q_starts": []}, flashkit.DimensionError, "q_starts"),
    ("batch of lens", {"kv_lens": [1, 2, 3]}, flashkit.DimensionError, "kv_lens"),
    ("batch of packed keys", {"kv_starts": [0, 2, 5]}, flashkit.DimensionError, "kv_starts"),
    ("page -1", {"pages": [[0, -1]], "kv_lens": [6]}, flashkit.OptionError, "pages[0, 1]"),
    ("page beyond int32", {"pages": np.array([[2**32]]), "kv_lens": [2]}, flashkit.OptionError, "pages[0, 0]"),
    ("page beyond int64", {"pages": np.array([[2**64 - 1]], np.uint64), "kv_lens": [2]}, flashkit.OptionError, "pages[0, 0]"),
    ("masked q", {"q": np.ma.masked_equal(Q, 1)}, flashkit.DTypeError, "q"),
    ("masked mask", {"mask": np.ma.ones((3, 5), bool)}, flashkit.DTypeError, "mask"),
    ("masked lens", {"kv_lens": np.ma.array([3], mask=[True])}, flashkit.DTypeError, "kv_lens"),
    ("masked out", {"out": np.ma.zeros(Q.shape, np.float32)}, flashkit.DTypeError, "out"),
    ("pages", {"pages": [[7]], "kv_lens": [2]}, flashkit.OptionError, "pages[0, 0]"),
    ("layout", {"layout": "bhds"}, flashkit.OptionError, "layout"),
    ("dtype", {"dtype": "float8"}, flashkit.OptionError, "dtype"),
    ("workers", {"workers": -1}, flashkit.OptionError, "workers"),
    ("timeout", {"timeout": 0}, flashkit.OptionError, "timeout"),
    ("timeout text", {"timeout": "1"}, flashkit.OptionError, "timeout"),
    ("cancel", {"cancel": 5}, flashkit.OptionError, "cancel"),
    ("causal", {"causal": "no"}, flashkit.OptionError, "causal"),
    ("causal number", {"causal": 2}, flashkit.OptionError, "causal"),
    ("causal array", {"causal": np.ones(2, bool)}, flashkit.OptionError, "causal"),
    ("top_left", {"top_left": None}, flashkit.OptionError, "top_left"),
    ("return_lse", {"return_lse": "no"}, flashkit.OptionError, "return_lse"),
    ("carry text", {"carry": "no"}, flashkit.OptionError, "carry"),
    ("shift", {"shift": 1.5}, flashkit.OptionError, "shift"),
    ("long shift", {"shift": 2**64}, flashkit.OptionError, "shift"),
    ("long window", {"window": (2**64, 0)}, flashkit.OptionError, "window"),
    ("backend number", {"backend": 5}, flashkit.OptionError, "backend"),
    ("backend list", {"backend": ["simd"]}, flashkit.OptionError, "backend"),
    ("backend", {"backend": "simd/none"}, flashkit.Error, None),
    ("carry", {"carry": True}, flashkit.NullError, "out"),
]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case[0])
def test_refused(case):
    _, changes, error, field = case
    out = np.full(Q.shape, np.nan, np.float32)
    arguments = {"q": Q, "k": K, "v": V, "out": None if "carry" in changes else out} | changes
    with pytest.raises(error) as caught:
        flashkit.attention(arguments.pop("q"), arguments.pop("k"), arguments.pop("v"), **arguments)
    assert field is None or caught.value.field == field, caught.value
    assert str(caught.value).startswith("flashkit: ") or field is None
    assert np.isnan(out).all()


# An error uses the names and shapes of the caller's arguments.
TEXTS = [
    ({"out": zeros(1, 2, 4, 8)}, "out.shape = (1, 2, 4, 8): must be (1, 2, 3, 8)"),
    ({"out": Q}, "out = output: shares memory with q"),
    ({"out": zeros(1, 2, 4, 9), "layout": "bshd", "k": zeros(1, 5, 3, 8), "v": zeros(1, 5, 3, 9)}, "out.shape = (1, 2, 4, 9): must be (1, 2, 3, 9)"),
    ({"v": zeros(1, 5, 2, 8), "layout": "bshd", "k": zeros(1, 4, 3, 8)}, "v.shape = (1, 5, 2, 8): must be (1, 4, 3, 8)"),
    ({"q": np.broadcast_to(zeros(1, 1, 2, 16)[..., ::2], (1, 3, 2, 8)), "layout": "bshd"}, "q.strides[3] = 2: "),
    ({"lse": zeros(1, 2, 4)}, "lse.shape = (1, 2, 4): must be (1, 2, 3)"),
    ({"bias": zeros(3, 4)}, "bias.shape = (3, 4): must be (3, 5), or 1"),
    ({"bias": zeros(7, 3, 5)}, "bias.shape = (7, 3, 5): must be (2, 3, 5), or 1"),
    ({"slopes": zeros(3)}, "slopes.shape = (3,): must be (2,)"),
    ({"slopes": zeros(1, 3)}, "slopes.shape = (1, 3): must be (1, 2)"),
    ({"sink": zeros(3)}, "sink.shape = (3,): must be (2,)"),
    ({"mask": zeros(3, 5)}, "mask.dtype = f32: must be bool"),
    ({"kv_lens": [1, 2, 3]}, "kv_lens describes 3 sequences: must be 1, the batch of q"),
    ({"q_starts": [0, 1, 3]}, "k.shape = (1, 2, 5, 8): must have batch 2, as q_starts describes 2 sequences and kv_starts is not given"),
    ({"pages": [[0, 0, 1, 9]], "kv_lens": [17]}, "pages[0, 2] = 1: must be from 0 to 0, the pages of k"),
    ({"window": (-2, 0)}, "window = (-2, 0): must be (left, right)"),
    ({"origin": (0, 0, 0, 12), "dropout": 0.5}, "origin = 12: must be a multiple of 8"),
    ({"origin": (0, 0, 0, 0)}, "origin = true: needs dropout"),
]


@pytest.mark.parametrize("case", TEXTS, ids=lambda case: case[1])
def test_text(case):
    changes, text = case
    arguments = {"q": Q, "k": K, "v": V} | changes
    with pytest.raises(flashkit.Error) as caught:
        flashkit.attention(arguments.pop("q"), arguments.pop("k"), arguments.pop("v"), **arguments)
    assert str(caught.value).startswith(f"flashkit: {text}")
    assert text.startswith(caught.value.field)


def test_text_of_other_functions():
    o, lse = flashkit.attention(Q, K, V, return_lse=True)
    for call, text in (
        (lambda: flashkit.attention_backward(o, Q, K, V, o[:, :, :2], lse), "o.shape = (1, 2, 2, 8): must be (1, 2, 3, 8)"),
        (lambda: flashkit.attention_backward(o, Q, K, V, o, lse, d_lse=lse[:, :1]), "d_lse.shape = (1, 1, 3): must be (1, 2, 3)"),
        (lambda: flashkit.merge(o, lse, o[:, :, :2], lse), "o2.shape = (1, 2, 2, 8): must be (1, 2, 3, 8)"),
        (lambda: flashkit.merge(o, lse, o, lse[:, :1]), "lse2.shape = (1, 1, 3): must be (1, 2, 3)"),
        (lambda: flashkit.merge(o.swapaxes(1, 2), lse, o[:, :, :2].swapaxes(1, 2), lse, layout="bshd"), "o2.shape = (1, 2, 2, 8): must be (1, 3, 2, 8)"),
    ):
        with pytest.raises(flashkit.Error) as caught:
            call()
        assert str(caught.value).startswith(f"flashkit: {text}")


def test_unknown_keyword():
    with pytest.raises(TypeError, match="softcaps"):
        flashkit.explain(Q, K, V, softcaps=1)


def test_backward_refused():
    o, lse = flashkit.attention(Q, K, V, return_lse=True)
    with pytest.raises(flashkit.NullError) as caught:
        flashkit.attention_backward(o, Q, K, V, o, lse, d_bias=True)
    assert caught.value.field == "d_bias"
    with pytest.raises(flashkit.DimensionError):
        flashkit.attention_backward(o[:, :, :2], Q, K, V, o, lse)


def test_classes():
    codes = [c.code for c in vars(flashkit).values() if isinstance(c, type) and issubclass(c, flashkit.Error) and c.code]
    assert sorted(codes) == list(range(1, 18))
    again = pickle.loads(pickle.dumps(flashkit.HeadDimError("text", "q.shape")))
    assert (type(again), again.field, str(again)) == (flashkit.HeadDimError, "q.shape", "text")


@pytest.mark.parametrize("version, fits", [("0.1.9999", True), ("0.2.0", False), ("1.0.0", False)])
def test_version(monkeypatch, version, fits):
    monkeypatch.setattr(flashkit._fields, "VERSION", version)
    if fits:
        flashkit._abi._load()
        return
    with pytest.raises(flashkit.UnavailableError, match=f"has version {flashkit.__version__}; this package needs ") as caught:
        flashkit._abi._load()
    assert caught.value.field == "FLASHKIT_LIBRARY"


def test_closed():
    d = flashkit.Dispatcher("simd")
    d.close()
    d.close()
    with pytest.raises(flashkit.HandleError):
        flashkit.attention(Q, K, V, backend=d)


def test_cancel_and_timeout():
    cancel = flashkit.Cancel()
    cancel.now()
    with pytest.raises(flashkit.CanceledError):
        flashkit.attention(Q, K, V, cancel=cancel)
    x = zeros(1, 8, 4096, 128)
    with pytest.raises(flashkit.TimeoutError):
        flashkit.attention(x, x, x, timeout=1e-9)
    late = flashkit.Cancel()
    thread = threading.Timer(0.02, late.now)
    thread.start()
    with pytest.raises(flashkit.CanceledError):
        while True:
            flashkit.attention(x, x, x, cancel=late)
    thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork():
    flashkit.attention(Q, K, V)
    child = os.fork()
    if child == 0:
        try:
            flashkit.attention(Q, K, V)
            os._exit(1)
        except flashkit.ForkedError:
            os._exit(0)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
