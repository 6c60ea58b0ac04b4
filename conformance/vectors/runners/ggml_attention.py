"""ggml on the CPU: flash_attn_ext of the prebuilt libraries in node-llama-cpp. Install: numpy, and with npm node-llama-cpp in GGML_FOLDER."""

import ctypes
import json
import os
import pathlib

import numpy as np

import judge

KINDS = {"f32": (0, np.float32), "f16": (1, np.float16), "bf16": (30, None)}
FOLDER = pathlib.Path(os.environ["GGML_FOLDER"]) / "node_modules"
BASE = str(FOLDER / "@node-llama-cpp/linux-x64/bins/linux-x64/libggml-base.so")
VERSION = json.loads((FOLDER / "node-llama-cpp/package.json").read_text())["version"]
base = ctypes.CDLL(BASE, ctypes.RTLD_GLOBAL)
cpu = ctypes.CDLL(BASE.replace("base", "cpu-" + os.environ.get("GGML_CPU", "haswell")))
P, F, L = ctypes.c_void_p, ctypes.c_float, ctypes.c_int64


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", P), ("no_alloc", ctypes.c_bool)]


for library, name, result, *arguments in (
    (base, "ggml_init", P, InitParams), (base, "ggml_free", None, P), (base, "ggml_new_tensor_4d", P, P, ctypes.c_int, L, L, L, L),
    (base, "ggml_flash_attn_ext", P, P, P, P, P, P, F, F, F), (base, "ggml_flash_attn_ext_add_sinks", None, P, P), (base, "ggml_new_graph", P, P),
    (base, "ggml_build_forward_expand", None, P, P), (base, "ggml_get_data", P, P), (cpu, "ggml_graph_compute_with_ctx", ctypes.c_int, P, P, ctypes.c_int),
):
    getattr(library, name).restype, getattr(library, name).argtypes = result, arguments


@judge.runner(f"ggml of node-llama-cpp {VERSION} flash_attn_ext", "gqa v_dim scale window top_left shift softcap alibi bias mask sink ragged mixed")
def attention(q, k, v, **case):
    shown, bias = judge.visible(case), judge.added(case)
    if 0 in q.shape + k.shape:
        raise judge.Unsupported("no empty tensors")
    mask = None if bias is None else np.broadcast_to(bias, (*bias.shape[:2], case["q_len"], case["kv_len"])).astype(np.float16)
    if bias is not None and not np.array_equal(mask.astype(np.float32), np.broadcast_to(bias, mask.shape), equal_nan=True):
        raise judge.Unsupported("no bias beyond float16")
    if shown is not None:
        mask = np.where(shown, np.float16(0) if mask is None else mask, np.float16(-np.inf))
    context = base.ggml_init(InitParams(1 << 27, None, False))
    def tensor(kind, x):
        t = base.ggml_new_tensor_4d(context, kind, *x.shape[::-1], *[1] * (4 - x.ndim))
        ctypes.memmove(base.ggml_get_data(t), np.ascontiguousarray(x).ctypes.data, x.nbytes)
        return t
    kind, dtype = KINDS[case["kv_dtype"]]
    k, v = (tensor(kind, x.astype(dtype) if dtype else (x.view(np.uint32) >> 16).astype(np.uint16)) for x in (k, v))
    o = base.ggml_flash_attn_ext(context, tensor(0, q), k, v, None if mask is None else tensor(1, mask), case["scale"], 0, case["softcap"])
    if case["sink"] is not None:
        base.ggml_flash_attn_ext_add_sinks(o, tensor(0, case["sink"]))
    graph = base.ggml_new_graph(context)
    base.ggml_build_forward_expand(graph, o)
    cpu.ggml_graph_compute_with_ctx(context, graph, 1)
    shape = (q.shape[0], q.shape[2], q.shape[1], case["v_dim"])
    out = np.ctypeslib.as_array((F * int(np.prod(shape))).from_address(base.ggml_get_data(o))).reshape(shape).swapaxes(1, 2).copy()
    base.ggml_free(context)
    return {"o": out}
