"""ggml as a side of forms.py, through the library that make builds from bench/peers/ggml.c."""

import ctypes
import math
import os

import torch

import forms_problem
from forms_sides import Side, Unable


class Ggml(Side):
    """flash_attn_ext. It takes softcap, ALiBi, sinks and a float16 mask. K and V are float32, float16 or bfloat16, Q and O always float32."""

    kinds = {"f32": 0, "f16": 1, "bf16": 30}

    def __init__(self, library, form, x, threads, kv):
        if form.backward or form.dropout or form.page or form.lens and not form.packed:
            raise Unable("has no such argument, and no backward pass")
        if form.alibi and (form.h & (form.h - 1) or form.bias) or form.packed and (form.mask or form.bias):
            raise Unable("not in this combination")
        self.library, self.form = library, form
        lens = form.lens if form.packed else [None]
        sizes = [(1, form.h, form.g, n, n, form.d) if n else (form.b, form.h, form.g, form.n, form.m, form.d) for n in lens]
        masks = [self.mask(x, size) for size in sizes]
        dims = masks[0].shape[:2] if masks[0] is not None else (0, 0)
        flat_sizes = (ctypes.c_int64 * (6 * len(sizes)))(*[i for size in sizes for i in size])
        number = lambda value: ctypes.c_float(value)
        self.handle = library.attention_open(len(sizes), flat_sizes, self.kinds[kv], ctypes.c_int64(dims[0]), ctypes.c_int64(dims[1]), int(form.sink),
                                             number(1 / math.sqrt(form.d)), number(8.0 * form.alibi), number(form.softcap), threads)
        if not self.handle:
            raise Unable("no memory")
        self.fill(x, masks, kv)
        super().__init__(lambda: library.attention_run(self.handle), self.values)

    def mask(self, x, size):
        """Return the mask tensor, which ggml adds to the scores. With ALiBi, ggml multiplies it by the slopes first."""
        form, n, m = self.form, size[3], size[4]
        s = torch.zeros(1, 1, n, m)
        distance = torch.arange(m)[None] - torch.arange(n)[:, None] - (m - n)
        if form.bias:
            s = s + x["bias"].float()
        if form.alibi:
            s = s - distance.abs()
        if form.mask:
            s = s.masked_fill(~x["mask"], -torch.inf)
        if form.causal:
            s = s.masked_fill(distance > 0, -torch.inf)
        return s.half().contiguous() if form.bias or form.alibi or form.mask or form.causal else None

    def fill(self, x, masks, kv):
        bounds = self.form.starts() if self.form.packed else [0, None]
        for node, (begin, end) in enumerate(zip(bounds, bounds[1:])):
            self.put(node, 0, x["q"][:, :, begin:end].float())
            for which, name in ((1, "k"), (2, "v")):
                self.put(node, which, x[name][:, :, begin:end].to(forms_problem.TYPES[kv]))
            if masks[node] is not None:
                self.put(node, 3, masks[node])
            if self.form.sink:
                self.put(node, 4, x["sink"].float())

    def put(self, node, which, t):
        raw = t.contiguous().reshape(-1).view(torch.uint8).numpy()
        ctypes.memmove(self.library.attention_data(self.handle, node, which), raw.ctypes.data, raw.nbytes)

    def values(self):
        self.call()
        out, form = [], self.form
        for node in range(len(form.lens) if form.packed else 1):
            b, n = (1, form.lens[node]) if form.packed else (form.b, form.n)
            data = (ctypes.c_float * (b * n * form.h * form.d)).from_address(self.library.attention_data(self.handle, node, 5))
            out.append(torch.frombuffer(data, dtype=torch.float32).clone().reshape(b, n, form.h, form.d).transpose(1, 2))
        return {"o": torch.cat(out, dim=2) if form.packed else out[0]}

    def close(self):
        self.library.attention_close(self.handle)


def library(path):
    """Return the library that make builds, or None if it does not exist."""
    if not path or not os.path.exists(path):
        return None
    found = ctypes.CDLL(path)
    found.attention_open.restype = found.attention_data.restype = ctypes.c_void_p
    found.attention_version.restype = ctypes.c_char_p
    found.attention_run.argtypes = found.attention_close.argtypes = [ctypes.c_void_p]
    found.attention_data.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    return found
