#!/usr/bin/env python3
"""Write what PyTorch computes for the layers of package nn, in float64: vectors for its tests.

    make nn-vectors   # the small cells in nn/testdata
    make nn-values    # the whole grid in bin/nn-values, and the test that reads it

A file has a layer's parameters (param.NAME), inputs (in.NAME), the gradient of the output
(dy), and what PyTorch makes of them: the output (out), the gradients of the inputs
(din.NAME) and of the parameters (grad.NAME). All of it is rounded to float32 after the
computation; the inputs are so before. The metadata says which layer it is, and of what size.
"""

import argparse
import gzip
import io
import itertools
import json
import pathlib
import zlib

import numpy as np
import torch
from safetensors.numpy import save
from torch import nn
from torch.nn import functional as F

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)  # the problems are too small for threads


class Rotary:
    """Positions turned into angles: pairs i and i + dim/2, or 2i and 2i+1."""

    def __init__(self, dim, interleaved):
        self.dim, self.interleaved = dim, interleaved

    def __call__(self, x):  # [batch, heads, rows, head dim]
        t, half = x.shape[2], self.dim // 2
        angle = torch.arange(t)[:, None] * 10000.0 ** (-torch.arange(half) / half)
        cos, sin = torch.cos(angle), torch.sin(angle)
        turned, rest = x[..., : self.dim], x[..., self.dim :]
        if self.interleaved:
            u, v = turned[..., 0::2], turned[..., 1::2]
            turned = torch.stack([u * cos - v * sin, v * cos + u * sin], -1).flatten(-2)
        else:
            u, v = turned[..., :half], turned[..., half:]
            turned = torch.cat([u * cos - v * sin, v * cos + u * sin], -1)
        return torch.cat([turned, rest], -1)


def attend(q, k, v, heads, kv_heads, causal, rotary=None):
    """Attention of [batch, rows, heads * dim], by the formula; the last row sees every key."""
    split = lambda x, n: x.unflatten(-1, (n, -1)).transpose(1, 2)
    q, k, v = split(q, heads), split(k, kv_heads), split(v, kv_heads)
    if rotary:
        q, k = rotary(q), rotary(k)
    k, v = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        n, m = scores.shape[-2:]
        scores = scores.masked_fill(torch.ones(n, m).triu(m - n + 1).bool(), float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2)


class MultiHeadAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.rotary = Rotary(c["rotary"], c.get("interleaved", False)) if "rotary" in c else None

    def forward(self, q, k, v):
        return attend(q, k, v, self.c["heads"], self.c.get("kv_heads", self.c["heads"]), self.c["causal"], self.rotary)


class AttentionLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        f, inner = c["features"], c["heads"] * c["dim_head"]
        kv_inner = c.get("kv_heads", c["heads"]) * c["dim_head"]
        k, v = c.get("k_features", f), c.get("v_features", f)
        self.norm_q, self.norm_k, self.norm_v = nn.LayerNorm(f), nn.LayerNorm(k), nn.LayerNorm(v)
        self.q, self.k = nn.Linear(f, inner, bias=False), nn.Linear(k, kv_inner, bias=False)
        self.v, self.out = nn.Linear(v, kv_inner, bias=False), nn.Linear(inner, c.get("out_features", f), bias=False)
        self.attention = MultiHeadAttention(c)

    def forward(self, q, k=None, v=None):
        k, v = q if k is None else k, q if v is None else v
        return self.out(self.attention(self.q(self.norm_q(q)), self.k(self.norm_k(k)), self.v(self.norm_v(v))))


class TransformerLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.attention, self.norm = AttentionLayer(c), nn.LayerNorm(c["features"])
        self.linear1, self.linear2 = nn.Linear(c["features"], c["hidden"]), nn.Linear(c["hidden"], c["features"])

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.linear2(F.relu(self.linear1(self.norm(x))))


class Transformer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.positions = nn.Embedding(c["sequence_len"], c["features"])
        self.layers = nn.ModuleList(TransformerLayer(c) for _ in range(c["layers"]))
        self.time_first = c.get("time_first", False)

    def forward(self, x):
        if self.time_first:
            x = x.transpose(0, 1)
        x = x + self.positions(torch.arange(x.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return x.transpose(0, 1) if self.time_first else x


class LanguageModel(Transformer):
    def __init__(self, c):
        super().__init__(c)
        self.embedding, self.head = nn.Embedding(c["vocabulary"], c["features"]), nn.Linear(c["features"], c["vocabulary"])

    def forward(self, tokens):
        return self.head(super().forward(self.embedding(tokens)))


class Positions(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.p = nn.Embedding(c["sequence_len"], c["features"])

    def forward(self, x):
        return x + self.p(torch.arange(x.shape[1]))


def elementwise(function):
    class Elementwise(nn.Module):
        def __init__(self, c):
            super().__init__()

        def forward(self, x):
            return function(x)

    return Elementwise


LAYERS = {
    "linear": lambda c: nn.Linear(c["features"], c["out_features"], bias=c["bias"]),
    "layer_norm": lambda c: nn.LayerNorm(c["features"], eps=c["eps"]),
    "embedding": lambda c: nn.Embedding(c["vocabulary"], c["features"]),
    "positions": Positions,
    "relu": elementwise(F.relu),
    "gelu": elementwise(F.gelu),
    "gelu_tanh": elementwise(lambda x: F.gelu(x, approximate="tanh")),
    "attention": MultiHeadAttention,
    "attention_layer": AttentionLayer,
    "transformer_layer": TransformerLayer,
    "transformer": Transformer,
    "language_model": LanguageModel,
}


def f32(x):
    """Round. What is 0 but for rounding in float64 becomes 0, so that every machine writes the same."""
    x = x.detach().numpy()
    return np.where(abs(x) < 1e-14, 0, x).astype(np.float32)


def cell(c):
    """Return the tensors of a cell."""
    seed = zlib.crc32(json.dumps(c, sort_keys=True).encode())
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=g).float().double()
    layer = LAYERS[c["layer"]](c)
    with torch.no_grad():
        for module in layer.modules():
            for name, p in module.named_parameters(recurse=False):
                if isinstance(module, nn.LayerNorm):
                    p.add_(0.3 * draw(*p.shape))
                elif isinstance(module, nn.Linear):
                    p.copy_((2 * torch.rand(*p.shape, generator=g) - 1) / module.in_features**0.5)
                else:
                    p.copy_(draw(*p.shape))
                p.copy_(p.float().double())
    lead = (c["t"], c["batch"]) if c.get("time_first") else (c["batch"], c["t"])
    inputs = {}
    if "vocabulary" in c:
        inputs["tokens"] = torch.randint(c["vocabulary"], (c["batch"], c["t"]), generator=g)
    elif c["layer"] == "attention":
        kv = c.get("kv_heads", c["heads"])
        inputs["q"] = draw(*lead, c["heads"] * c["dim_head"])
        inputs["k"] = draw(c["batch"], c.get("keys", c["t"]), kv * c["dim_head"])
        inputs["v"] = draw(c["batch"], c.get("keys", c["t"]), kv * c.get("dim_value", c["dim_head"]))
    elif "keys" in c:
        inputs["q"] = draw(*lead, c["features"])
        inputs["k"] = draw(c["batch"], c["keys"], c["k_features"])
        inputs["v"] = draw(c["batch"], c["keys"], c["v_features"])
    else:
        inputs["x"] = draw(*lead, c["features"])
    for x in inputs.values():
        x.requires_grad_(x.is_floating_point())
    y = layer(*inputs.values())
    tensors = {}
    if c["layer"] == "language_model":
        targets = torch.randint(c["vocabulary"], (c["batch"], c["t"]), generator=g)
        targets[0, 0] = -100
        inputs["targets"] = targets
        loss = F.cross_entropy(y.flatten(0, 1), targets.flatten())
        loss.backward()
        tensors["loss"] = f32(loss[None])
    else:
        dy = draw(*y.shape)
        y.backward(dy)
        tensors["dy"] = f32(dy)
    tensors["out"] = f32(y)
    for name, x in inputs.items():
        tensors["in." + name] = f32(x) if x.is_floating_point() else x.numpy().astype(np.int32)
        if x.grad is not None:
            tensors["din." + name] = f32(x.grad)
    for name, p in layer.named_parameters():
        name = name.removeprefix("p.")
        tensors["param." + name], tensors["grad." + name] = f32(p), f32(p.grad)
    return tensors


def optimizer(c):
    """Return a parameter before and after steps with random gradients."""
    g = torch.Generator().manual_seed(7)
    p = nn.Parameter(torch.randn(40, generator=g).float().double())
    tensors = {"param.weight": f32(p)}
    lr, decay = c["lr"], c["weight_decay"]
    o = torch.optim.AdamW([p], lr=lr, weight_decay=decay) if c["layer"] == "adamw" else torch.optim.SGD([p], lr=lr, momentum=c["momentum"], weight_decay=decay)
    grads = (3 * torch.randn(c["steps"], 40, generator=g)).float().double()
    norms = []
    for x in grads:
        p.grad = x.clone()
        norms.append(nn.utils.clip_grad_norm_([p], c["clip"]))
        o.step()
    return tensors | {"in.grads": f32(grads), "norms": f32(torch.stack(norms)), "out": f32(p)}


def small():
    """The cells of nn/testdata: every layer once, and one cell of the grid."""
    base = {"batch": 2, "t": 5, "features": 12}
    heads = {"batch": 2, "t": 6, "heads": 4, "dim_head": 8}
    model = base | {"heads": 3, "dim_head": 8, "hidden": 16, "layers": 2, "sequence_len": 9}
    yield "linear", base | {"layer": "linear", "out_features": 9, "bias": True}
    yield "linear_no_bias", base | {"layer": "linear", "out_features": 9, "bias": False}
    yield "layer_norm", base | {"layer": "layer_norm", "eps": 1e-5}
    yield "layer_norm_eps", base | {"layer": "layer_norm", "eps": 1e-2}
    yield "embedding", base | {"layer": "embedding", "vocabulary": 7}
    yield "positions", base | {"layer": "positions", "sequence_len": 9}
    for name in ("relu", "gelu", "gelu_tanh"):
        yield name, base | {"layer": name}
    yield "attention", heads | {"layer": "attention", "causal": False}
    yield "attention_causal", heads | {"layer": "attention", "causal": True}
    yield "attention_cross", heads | {"layer": "attention", "causal": True, "keys": 9, "dim_value": 5}
    yield "attention_groups", heads | {"layer": "attention", "causal": True, "kv_heads": 2}
    yield "attention_rotary_half", heads | {"layer": "attention", "causal": True, "rotary": 8}
    yield "attention_rotary_interleaved", heads | {"layer": "attention", "causal": False, "rotary": 6, "interleaved": True}
    yield "attention_layer", base | {"layer": "attention_layer", "heads": 3, "dim_head": 8, "causal": True}
    yield "attention_layer_cross", base | {"layer": "attention_layer", "heads": 4, "kv_heads": 2, "dim_head": 8, "causal": False, "keys": 7, "k_features": 10, "v_features": 6, "out_features": 11}
    yield "transformer_layer", model | {"layer": "transformer_layer", "causal": True}
    yield "transformer", model | {"layer": "transformer", "causal": True}
    yield "transformer_time_first", model | {"layer": "transformer", "causal": False, "time_first": True}
    yield "language_model", model | {"layer": "language_model", "causal": True, "vocabulary": 13}
    yield "adamw", {"layer": "adamw", "lr": 0.01, "weight_decay": 0.1, "steps": 6, "clip": 18.0}
    yield "sgd", {"layer": "sgd", "lr": 0.01, "weight_decay": 0.1, "momentum": 0.9, "steps": 6, "clip": 18.0}
    yield "grid", {"layer": "attention_layer", "batch": 2, "t": 11, "features": 27, "heads": 5, "dim_head": 32, "causal": True}


def grid():
    """The cells that the package is accepted by."""
    for batch, t, heads, dim, causal in itertools.product((2, 4, 8), (5, 11, 31), (5, 8), (32, 64), (False, True)):
        c = {"batch": batch, "t": t, "features": 27, "heads": heads, "dim_head": dim, "causal": causal}
        name = f"b{batch}-t{t}-h{heads}-d{dim}" + ("-causal" if causal else "")
        yield name + "-attention", {k: v for k, v in c.items() if k != "features"} | {"layer": "attention"}
        yield name + "-attention_layer", c | {"layer": "attention_layer"}
        yield name + "-transformer_layer", c | {"layer": "transformer_layer", "hidden": 64}
        for layers in (2, 4):
            model = c | {"hidden": 64, "layers": layers, "sequence_len": 32}
            yield f"{name}-l{layers}-transformer", model | {"layer": "transformer"}
            yield f"{name}-l{layers}-language_model", model | {"layer": "language_model", "vocabulary": 20}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--grid", action="store_true", help="the whole grid, not compressed")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, c in grid() if args.grid else small():
        tensors = {k: np.ascontiguousarray(v) for k, v in (optimizer(c) if c["layer"] in ("adamw", "sgd") else cell(c)).items()}
        data = save(tensors, metadata={"config": json.dumps(c, sort_keys=True)})
        if args.grid:
            (args.folder / f"{name}.safetensors").write_bytes(data)
            continue
        out = io.BytesIO()
        with gzip.GzipFile(fileobj=out, mode="wb", mtime=0, filename="") as f:
            f.write(data)
        (args.folder / f"{name}.safetensors.gz").write_bytes(out.getvalue())


if __name__ == "__main__":
    main()
