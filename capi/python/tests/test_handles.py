"""Dispatchers and Cancels: copies, pickles, threads, the end of a process."""

import copy
import gc
import pickle
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import flashkit

Q = np.ones((1, 2, 3, 8), np.float32)


def chosen(d):
    return [k.name for k in flashkit.kernels(d)]


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda x: copy.deepcopy({"model": [x]})["model"][0]])
def test_a_copy_is_the_same(way):
    d, cancel = flashkit.Dispatcher(frozen=True), flashkit.Cancel()
    for x in (d, cancel):
        again = way(x)
        assert again is x
        del again
    gc.collect()
    flashkit.attention(Q, Q, Q, backend=d, cancel=cancel)
    d.close()


def test_a_module_with_a_dispatcher_outlives_its_copy():
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(2, 2)
    module.d = flashkit.Dispatcher(frozen=True)
    average = copy.deepcopy(module)
    del average
    gc.collect()
    flashkit.attention(Q, Q, Q, backend=module.d)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_opens_another(protocol):
    d = flashkit.Dispatcher("simd", frozen=True, paired=True)
    again = pickle.loads(pickle.dumps(d, protocol))
    assert repr(again) == repr(d) == "Dispatcher('simd', frozen=True, paired=True)"
    assert chosen(again) == chosen(d)
    again.close()
    flashkit.attention(Q, Q, Q, backend=d)
    d.close()
    with pytest.raises(flashkit.HandleError):
        pickle.dumps(d, protocol)
    for closed in (d, again):
        assert repr(closed).startswith("<closed ")


def test_a_pickle_in_another_process():
    """The other process holds handles of its own, of other kernels."""
    d = flashkit.Dispatcher("simd", frozen=True)
    code = f"""
import pickle, flashkit
mine = [flashkit.Dispatcher("wasm") for _ in range(4)]
d = pickle.loads({pickle.dumps(d)!r})
assert all(k.name.startswith("simd/") for k in flashkit.kernels(d)), flashkit.kernels(d)
del d
for m in mine:
    flashkit.kernels(m)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_cancel_is_not_pickled(protocol):
    cancel = flashkit.Cancel()
    with pytest.raises(TypeError, match="Cancel cannot be pickled"):
        pickle.dumps(cancel, protocol)
    assert repr(cancel) == "<Cancel>"
    cancel.now()
    assert repr(cancel) == "<Cancel, now was called>"


def test_threads_close_once():
    for _ in range(20):
        d, errors, begin = flashkit.Dispatcher("simd"), [], threading.Barrier(4)

        def work(d=d, errors=errors, begin=begin):
            begin.wait()
            try:
                d.close()
            except flashkit.Error as e:
                errors.append(e)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not errors
        with pytest.raises(flashkit.HandleError) as caught:
            flashkit.kernels(d)
        assert caught.value.field == "backend"


def test_not_opened():
    """An object whose constructor did not run, or failed, holds nothing."""
    for kind in (flashkit.Dispatcher, flashkit.Cancel):
        empty = kind.__new__(kind)
        with pytest.raises(flashkit.HandleError):
            empty._take()
        repr(empty)
    with pytest.raises(flashkit.OptionError):
        flashkit.Dispatcher("simd", frozen="no")


def test_weak_references_and_the_end_of_a_process():
    d = flashkit.Dispatcher("simd")
    gone = weakref.ref(d)
    del d
    assert gone() is None
    code = """
import flashkit, numpy as np, threading
x = np.ones((1, 8, 1024, 64), np.float32)
d, c = flashkit.Dispatcher(), flashkit.Cancel()
d.self, c.self = d, c  # collected at the end
def work():
    while True:
        flashkit.attention(x, x, x, backend=d, cancel=c)
threading.Thread(target=work, daemon=True).start()
flashkit.attention(x, x, x)
"""
    r = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert r.stderr == ""
