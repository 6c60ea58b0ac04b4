"""The libraries that cpu.py and cpu_random.py time on the CPU: the table PEERS.

A row has the peer's name, its package, what the peer can express, and a function that makes its call. A call gets
tensors that exist before, and masks that are made before. PyTorch allocates its outputs, as it does for its users.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import importlib.util
import logging
import statistics
import time
import warnings
from typing import Callable

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import forms_problem
from forms_sides import SCORES, Onnx, Unable, array, flat

logging.getLogger("torch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", category=UserWarning)

BANDS = {"none": "", "causal": "-causal", "topleft": "-causal-topleft", "window": "-window{}.0"}
APART = {"f32": 1e-5, "f16": 5e-3, "bf16": 6e-2}  # largest difference of two libraries' outputs, relative to the largest element
SLOW = 2.5  # a peer is timed once if its first turn takes more than this many times the fastest peer's
OUTPUTS = {False: ("o",), True: ("dq", "dk", "dv")}


@dataclasses.dataclass(frozen=True)
class Case(forms_problem.Form):
    """A pass of plain attention: Form with a band of BANDS. A window has left keys before a row's own key."""

    band: str = "none"
    left: int = 0

    @property
    def name(self):
        return super().name + BANDS[self.band].format(self.left)

    @property
    def first(self):
        """Return whether row i sees the first i+1 keys, which is is_causal of PyTorch and ONNX."""
        return self.band == "topleft" or self.band == "causal" and self.n == self.m

    @functools.cached_property
    def dense(self):
        """Return the matrix of the band as a bias, 0 or -Inf, for peers without such a band."""
        rows, keys = torch.arange(self.n)[:, None], torch.arange(self.m)[None]
        distance = keys - rows - (0 if self.band == "topleft" else self.m - self.n)
        hidden = distance > 0 if self.band != "window" else (distance > 0) | (distance < -self.left)
        return torch.zeros(1, 1, self.n, self.m, dtype=forms_problem.TYPES[self.dtype]).masked_fill_(hidden, -torch.inf)


class Call:
    """A peer's call. scope is a context of all calls of a turn. outputs returns float32 tensors by name, such as dq."""

    def __init__(self, call, outputs, scope=contextlib.nullcontext):
        self.call, self.read, self.scope = call, outputs, scope

    def outputs(self):
        with self.scope():
            return self.read()

    def times(self, seconds):
        """Repeat the call for some seconds. Return the calls' times without the first, unless that one is long."""
        times, start = [], time.perf_counter()
        with self.scope():
            while len(times) < 2 or time.perf_counter() - start < seconds:
                begin = time.perf_counter()
                self.call()
                times.append(time.perf_counter() - begin)
                if times[0] > 3 * seconds:
                    return times
        return times[1:]

    def turn(self, seconds):
        """Return the median and the least of the times."""
        times = self.times(seconds)
        return statistics.median(times), min(times)


def torch_call(case, x, attend, backend=None):
    """Return attend(q, k, v), or the gradients of one such call by autograd."""
    inputs = [x[name].detach().requires_grad_(case.backward) for name in "qkv"]
    @contextlib.contextmanager
    def scope():
        with sdpa_kernel(backend) if backend else contextlib.nullcontext(), torch.inference_mode(not case.backward):
            yield
    if not case.backward:
        return Call(lambda: attend(*inputs), lambda: {"o": attend(*inputs).float()}, scope)
    with scope():
        o = attend(*inputs)
    call = lambda: torch.autograd.grad(o, inputs, x["do"], retain_graph=True)
    return Call(call, lambda: named(call()))


def named(gradients):
    return {name: t.float() for name, t in zip(OUTPUTS[True], gradients)}


def masks(case):
    """Return the arguments of scaled_dot_product_attention for the case's band."""
    if case.band == "none":
        return {}
    return {"is_causal": True} if case.first else {"attn_mask": case.dense}


def sdpa(case, x, threads, backend=None):
    more = masks(case) | {"enable_gqa": case.h != case.g}
    return torch_call(case, x, lambda q, k, v: scaled_dot_product_attention(q, k, v, **more), backend)


def sdpa_flash(case, x, threads):
    return sdpa(case, x, threads, SDPBackend.FLASH_ATTENTION)


def sdpa_math(case, x, threads):
    return sdpa(case, x, threads, SDPBackend.MATH)


def sdpa_repeated(case, x, threads):
    """Return SDPA on K and V whose heads each call repeats."""
    repeat = lambda t: t.repeat_interleave(case.h // case.g, 1)
    return torch_call(case, x, lambda q, k, v: scaled_dot_product_attention(q, repeat(k), repeat(v), **masks(case)))


def sdpa_folded(case, x, threads):
    """Return SDPA with the query heads of a KV head as further rows of one head."""
    more = {"attn_mask": case.dense.repeat(1, 1, case.h // case.g, 1)} if case.band != "none" else {}
    fold = lambda q: q.reshape(case.b, case.g, -1, case.d)
    return torch_call(case, x, lambda q, k, v: scaled_dot_product_attention(fold(q), k, v, **more).view(case.b, case.h, case.n, case.d))


def aten_flash(case, x, threads):
    """Return the operators that SDPA calls, without autograd."""
    ops = torch.ops.aten
    q, k, v = (x[name] for name in "qkv")
    more, causal = {"attn_mask": None if case.band == "none" or case.first else case.dense}, case.first
    forward = lambda: ops._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, **more)
    if not case.backward:
        return Call(forward, lambda: {"o": forward()[0].float()}, torch.inference_mode)
    with torch.no_grad():
        o, lse = forward()
    call = lambda: ops._scaled_dot_product_flash_attention_for_cpu_backward(x["do"], q, k, v, o, lse, 0.0, causal, **more)
    return Call(call, lambda: named(call()), torch.no_grad)


def aten_math(case, x, threads):
    q, k, v = (x[name] for name in "qkv")
    causal, mask = case.first, None if case.band == "none" or case.first else case.dense
    call = lambda: torch.ops.aten._scaled_dot_product_attention_math(q, k, v, mask, 0.0, causal, enable_gqa=case.h != case.g)
    return Call(call, lambda: {"o": call()[0].float()}, torch.inference_mode)


def onnx_call(*arguments):
    side = Onnx(*arguments)
    return Call(side.call, side.outputs)


def onnx_mha(case, x, threads):
    inputs = {"query": flat(x["q"]), "key": flat(x["k"]), "value": flat(x["v"])}
    square = case.first and case.n == case.m
    if case.band != "none" and not square:
        inputs |= {"bias": None, "key_padding_mask": None, "attention_bias": array(case.dense)}
    attributes = {"num_heads": case.h, "unidirectional": int(square)}
    return onnx_call("MultiHeadAttention", "com.microsoft", inputs, {"o": np.empty_like(inputs["query"])}, attributes, threads, case)


def onnx_gqa(case, x, threads):
    """Return GroupQueryAttention, which appends the last n keys to a cache of the others in place."""
    past = case.m - case.n
    cache = [x[name].clone().numpy() if past else None for name in "kv"]
    inputs = {"query": flat(x["q"]), "key": flat(x["k"][:, :, past:]), "value": flat(x["v"][:, :, past:]), "past_key": cache[0],
              "past_value": cache[1], "seqlens_k": np.full(case.b, case.m - 1, np.int32), "total_sequence_length": np.array(case.m, np.int32)}
    attributes = {"num_heads": case.h, "kv_num_heads": case.g}
    if case.band == "window":
        attributes["local_window_size"] = case.left + 1
    present = np.empty((case.b, case.g, case.m, case.d), inputs["query"].dtype)
    outputs = {"o": np.empty_like(inputs["query"]), "present_key": present, "present_value": present.copy()}
    return onnx_call("GroupQueryAttention", "com.microsoft", inputs, outputs, attributes, threads, case, past > 0)


def onnx_attention(case, x, threads):
    inputs = {"Q": array(x["q"]), "K": array(x["k"]), "V": array(x["v"])}
    if case.band != "none" and not case.first:
        inputs["attn_mask"] = array(case.dense)
    return onnx_call("Attention", "", inputs, {"Y": np.empty_like(inputs["Q"])}, {"is_causal": int(case.first)}, threads, case)


def openvino_sdpa(case, x, threads):
    import openvino
    from openvino import opset13

    kind = {"f32": openvino.Type.f32, "f16": openvino.Type.f16, "bf16": openvino.Type.bf16}[case.dtype]
    given = [x[name] for name in "qkv"] + [case.dense] * (case.band != "none" and not case.first)
    parameters = [opset13.parameter(list(t.shape), kind) for t in given]
    model = openvino.Model([opset13.scaled_dot_product_attention(*parameters, causal=case.first)], parameters)
    options = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": case.dtype}
    try:
        request = openvino_core().compile_model(model, "CPU", options).create_infer_request()
    except RuntimeError as reason:
        raise Unable(str(reason)[-200:].strip()) from reason
    for i, t in enumerate(given):
        tensor = openvino.Tensor(kind, list(t.shape))
        tensor.data.view(np.uint8)[:] = t.contiguous().view(torch.uint8).numpy()
        request.set_input_tensor(i, tensor)
    types = {openvino.Type.f32: torch.float32, openvino.Type.f16: torch.float16, openvino.Type.bf16: torch.bfloat16}
    def read():
        request.infer()
        o = request.get_output_tensor(0)
        return {"o": torch.from_numpy(o.data.view(np.uint8).copy()).view(types[o.element_type]).float()}
    return Call(request.infer, read)


@functools.cache
def openvino_core():
    import openvino

    return openvino.Core()


def stored(case):
    return "stores a matrix of scores that is too large here" if case.b * case.h * case.n * case.m > SCORES >> case.backward else ""


def equal_heads(case):
    return "has no grouped heads" if case.h != case.g else ""


def grouped(case):
    return "" if case.h != case.g else "is SDPA without groups"


def appended(case):
    if case.band not in ("causal", "window") and (case.band != "none" or case.n > 1):
        return "has no such band"
    return "has a cache and several rows only for batch 1" if case.b > 1 and 1 < case.n < case.m else ""


@dataclasses.dataclass(frozen=True)
class Peer:
    """A row of PEERS. reasons are functions of a case that return "" or why the peer cannot express it."""

    name: str
    library: str
    package: str
    make: Callable
    dtypes: tuple = ("f32", "f16", "bf16")
    backward: bool = False
    reasons: tuple = ()

    def refuses(self, case):
        """Return why the peer cannot express the case, or ""."""
        if case.dtype not in self.dtypes:
            return f"has no {case.dtype}"
        if case.backward and not self.backward:
            return "has no backward pass"
        return next(filter(None, (reason(case) for reason in self.reasons)), "")

    @property
    def installed(self):
        return importlib.util.find_spec(self.package) is not None

    @property
    def version(self):
        return importlib.metadata.version(self.package).partition("+")[0].partition("-")[0]


TORCH, ONNX, OPENVINO = ("PyTorch", "torch"), ("ONNX Runtime", "onnxruntime"), ("OpenVINO", "openvino")
PEERS = (
    Peer("SDPA", *TORCH, sdpa, backward=True),
    Peer("SDPA flash", *TORCH, sdpa_flash, backward=True),
    Peer("SDPA math", *TORCH, sdpa_math, backward=True, reasons=(stored,)),
    Peer("SDPA repeated heads", *TORCH, sdpa_repeated, backward=True, reasons=(grouped,)),
    Peer("SDPA folded heads", *TORCH, sdpa_folded, backward=True, reasons=(grouped,)),
    Peer("aten flash", *TORCH, aten_flash, backward=True, reasons=(equal_heads,)),
    Peer("aten math", *TORCH, aten_math, reasons=(stored,)),
    Peer("MultiHeadAttention", *ONNX, onnx_mha, ("f32", "f16"), reasons=(equal_heads,)),
    Peer("GroupQueryAttention", *ONNX, onnx_gqa, ("f32", "f16"), reasons=(appended,)),
    Peer("Attention", *ONNX, onnx_attention, ("f32", "f16"), reasons=(stored,)),
    Peer("OpenVINO SDPA", *OPENVINO, openvino_sdpa, reasons=(equal_heads, stored)),
)


def versions():
    """Return the libraries with their versions."""
    return list(dict.fromkeys(f"{peer.library} {peer.version}" for peer in PEERS if peer.installed))


def open_peers(case, x, threads, want):
    """Return {name: (call, difference from want)} of the peers that compute the case, and {name: reason} of the others.

    want are flashkit's outputs. A peer whose outputs differ by more than rounding excuses is not timed.
    """
    torch.set_num_threads(threads)
    calls, reasons = {}, {}
    for peer in PEERS:
        reasons[peer.name] = peer.refuses(case) if peer.installed else "is not installed"
        if reasons[peer.name]:
            continue
        try:
            call = peer.make(case, x, threads)
            far = apart(call.outputs(), want)
        except (Unable, RuntimeError) as reason:
            reasons[peer.name] = str(reason).strip()[:200] or type(reason).__name__
            continue
        if far <= APART[case.dtype]:
            calls[peer.name] = call, far
        else:
            reasons[peer.name] = f"differs by {far:.1e}"
    return calls, {name: reason for name, reason in reasons.items() if reason}


def apart(x, want):
    """Return the largest difference of two sets of outputs, relative to the largest element of want."""
    size = max(float(t.abs().max()) for t in want.values())
    far = float(torch.stack([(x[name] - t).abs().max() for name, t in want.items()]).max())
    return far / size if far < float("inf") else float("inf")  # also for NaN


def able(first):
    """Return the peers that are worth further turns. first has the time of each peer's first turn."""
    limit = SLOW * min(first.values(), default=0)
    return [name for name, seconds in first.items() if seconds <= limit]
