"""The libraries that forms.py times. A side makes a call from a form and its tensors, or raises Unable."""

import dataclasses
import json
import logging
import os
import select
import statistics
import subprocess
import time
import warnings

import numpy as np
import torch

import forms_problem

logging.getLogger("torch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", category=UserWarning)


SCORES = 1 << 26  # elements of the largest matrix of scores for sides that store it


class Unable(Exception):
    """The reason why a side does not compute a form."""


class Side:
    """A library's call for a form. turn repeats the call and returns its median time in seconds."""

    kernel = ""

    def __init__(self, call, outputs=None):
        self.call, self.outputs = call, outputs  # outputs returns float32 tensors by name, such as dq
        start = time.perf_counter()
        call()
        self.first = time.perf_counter() - start

    def turn(self, seconds):
        if self.first < seconds / 4:
            self.call()
        times, end = [], time.perf_counter() + seconds
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            self.call()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def close(self):
        pass


class Program:
    """The command bench/peers/ours, with a number of threads and without a profile: dispatch predicts times."""

    def __init__(self, command, threads):
        env = dict(os.environ, GOMAXPROCS=str(threads), FLASHKIT_PROFILE="off", FLASHKIT_BACKEND="", CUDA_VISIBLE_DEVICES="-1")
        self.process = subprocess.Popen([command], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.ahead = b""

    def ask(self, timeout=600, **request):
        """Return the reply to a request. Kill the program if it does not answer in time."""
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        end = time.monotonic() + timeout
        while b"\n" not in self.ahead:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))
            chunk = os.read(self.process.stdout.fileno(), 1 << 16) if ready else b""
            if not chunk:
                self.process.kill()
                raise SystemExit(f"ours {request}: " + ("it ended" if ready else f"no answer in {timeout} s"))
            self.ahead += chunk
        line, self.ahead = self.ahead.split(b"\n", 1)
        reply = json.loads(line)
        if "error" in reply:
            raise Unable(reply["error"])
        return reply

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)


class Ours(Side):
    """A cell of the program bench/peers/ours. Its inputs are the given tensors or, without tensors, random."""

    def __init__(self, program, form, seed, limit, kernel="", folder=None, tensors=None, hold=False, like=None):
        self.program, self.folder = program, folder
        request = {"problem": form.name, "pass": "bwd" if form.backward else "fwd", "kernel": kernel, "seed": seed, "limit": limit,
                   "hidden": form.hidden, "packed": form.packed, "hold": hold}
        request["leave"] = ["DSink", "DLSE"] + ["DBias"] * (not form.bias_gradient) + ["LSE"] * (not form.backward)
        request["shapes"] = {name: shape for name, shape in (("Bias", form.bias), ("DBias", form.bias), ("Mask", form.mask)) if shape}
        if form.lens:
            request["lens"] = form.lens
        if form.kv_lens:
            request["kvlens"] = form.kv_lens
        if like:  # K and V use the memory of another side's K and V
            request["like"] = like.cell
        if tensors:
            request["file"] = str(folder / "in.safetensors")
            forms_problem.save(folder / "in.safetensors", tensors)
        reply = program.ask(op="open", **request)
        self.cell, self.kernel, self.first, self.pairs, self.bytes = (reply.get(x, 0) for x in ("cell", "kernel", "seconds", "pairs", "bytes"))

    def turn(self, seconds):
        reply = self.program.ask(op="time", cell=self.cell, seconds=seconds)
        self.kernel = reply["kernel"]
        return reply["seconds"]

    def outputs(self):
        path = self.folder / "out.safetensors"
        self.program.ask(op="save", cell=self.cell, file=str(path))
        return {name: x.float() for name, x in forms_problem.load(path).items() if name != "lse"}

    def close(self):
        self.program.ask(op="close", cell=self.cell)


class Reading(Side):
    """A loop that only reads K and V of a cell of bench/peers/ours."""

    def __init__(self, ours):
        self.ours = ours
        self.first = self.turn(0)

    def turn(self, seconds):
        return self.ours.program.ask(op="read", cell=self.ours.cell, seconds=seconds)["seconds"]


def added(form, x):
    """Return the form and the tensors with the mask replaced by a bias, which is -Inf at hidden pairs."""
    if not form.mask or form.bias:
        raise Unable("has no mask, or a bias already")
    bias = torch.zeros(form.mask, dtype=x["q"].dtype).masked_fill(~x["mask"], -torch.inf)
    return dataclasses.replace(form, bias=form.mask, mask=(), mask_lens=()), {**x, "bias": bias, "mask": None}


def shown(side):
    """Return a side that passes ranges of keys as a bool mask, which is made before the timed calls."""
    def make(form, x, threads):
        if form.ranges:
            mask = form.shown()[None, None]
            form, x = dataclasses.replace(form, ranges="", causal=False, mask=tuple(mask.shape)), {**x, "mask": mask}
        return side(form, x, threads)
    return make


def torch_flex(form, x, threads):
    """Return FlexAttention, compiled, with a block mask that is made before the timed calls."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if not form.ranges:
        raise Unable("is timed with ranges of keys only")
    visible = form.shown()
    blocks = create_block_mask(lambda b, h, i, j: visible[i, j], None, None, form.n, form.m, device="cpu")
    compiled = torch.compile(flex_attention, dynamic=False)
    try:
        return torch_side(dataclasses.replace(form, ranges="", causal=False), x, threads,
                          lambda q, k, v, attn_mask, is_causal, enable_gqa: compiled(q, k, v, block_mask=blocks, enable_gqa=enable_gqa))
    except Exception as reason:  # the compiler raises many types of errors
        raise Unable(str(reason).splitlines()[0][:200]) from reason


def torch_added(form, x, threads):
    """Return scaled_dot_product_attention with a float mask, which is made before the timed calls."""
    return torch_side(*added(form, x), threads)


def onnx_added(form, x, threads):
    """Return ONNX's Attention with a float mask, which is made before the timed calls."""
    return onnx_attention(*added(form, x), threads)


def torch_math(form, x, threads):
    """Return the operator of SDPA's backend MATH, which stores the matrix of scores."""
    if form.b * form.h * form.n * form.m > SCORES >> form.backward:
        raise Unable("stores a matrix of scores that is too large here")
    def attend(q, k, v, attn_mask, is_causal, enable_gqa):
        if form.mask and not form.bias:  # the operator needs a float mask, which SDPA makes too
            attn_mask = torch.zeros(form.mask, dtype=q.dtype).masked_fill_(~attn_mask, -torch.inf)
        return torch.ops.aten._scaled_dot_product_attention_math(q, k, v, attn_mask, 0.0, is_causal, enable_gqa=enable_gqa)[0]
    return torch_side(form, x, threads, attend)


def torch_side(form, x, threads, function=torch.nn.functional.scaled_dot_product_attention):
    """Return scaled_dot_product_attention with a bool mask, or with a bias that is -Inf at hidden pairs."""
    if form.softcap or form.alibi or form.sink or form.dropout or form.lens or form.page or form.kv:
        raise Unable("has no such argument")
    if form.causal and (form.bias or form.mask):
        raise Unable("takes is_causal or attn_mask")
    torch.set_num_threads(threads)
    q, k, v = (x[name].clone().requires_grad_(form.backward) for name in "qkv")
    extra = x.get("mask")
    leaves = {"dq": q, "dk": k, "dv": v}
    if form.bias:
        extra = x["bias"] if extra is None else x["bias"].masked_fill(~extra, -torch.inf)
        extra = extra.clone().requires_grad_(form.bias_gradient)
        leaves |= {"dbias": extra} if form.bias_gradient else {}
    attend = lambda: function(q, k, v, attn_mask=extra, is_causal=form.causal, enable_gqa=form.h != form.g)
    if not form.backward:
        def call():
            with torch.inference_mode():
                return attend()
        return Side(call, lambda: {"o": call().float()})
    o = attend()
    call = lambda: torch.autograd.grad(o, list(leaves.values()), x["do"], retain_graph=True)
    return Side(call, lambda: {name: g.float() for name, g in zip(leaves, call())})


def torch_nested(form, x, threads):
    """Return scaled_dot_product_attention on packed sequences, as a nested tensor of PyTorch's layout jagged."""
    only_packed(form)
    torch.set_num_threads(threads)
    bounds = torch.tensor(form.starts())
    nest = lambda t: torch.nested.nested_tensor_from_jagged(t[0].transpose(0, 1).contiguous(), bounds).transpose(1, 2)
    q, k, v = (nest(x[name]) for name in "qkv")
    def call():
        with torch.no_grad():  # inference mode does not support nested tensors
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=form.causal)
    try:
        return Side(call, lambda: {"o": call().transpose(1, 2).values().transpose(0, 1)[None].float()})
    except RuntimeError as reason:  # PyTorch built for GPUs raises it if there is no GPU
        raise Unable(str(reason).splitlines()[0]) from reason


def torch_loop(form, x, threads):
    """Return scaled_dot_product_attention in a loop over the packed sequences."""
    only_packed(form)
    torch.set_num_threads(threads)
    parts = [tuple(x[name][:, :, a:b].contiguous() for name in "qkv") for a, b in zip(form.starts(), form.starts()[1:])]
    def call():
        with torch.inference_mode():
            return [torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=form.causal) for qkv in parts]
    return Side(call, lambda: {"o": torch.cat(call(), dim=2).float()})


def torch_padded(form, x, threads):
    """Return scaled_dot_product_attention on sequences padded to the longest one, with a mask that hides the padding."""
    only_packed(form)
    if form.causal:
        raise Unable("takes is_causal or attn_mask")
    torch.set_num_threads(threads)
    q, k, v = (pad(form, x[name]) for name in "qkv")
    mask = (torch.arange(form.m) < torch.tensor(form.lens)[:, None])[:, None, None, :]
    def call():
        with torch.inference_mode():
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return Side(call, lambda: {"o": unpad(form, call()).float()})


def only_packed(form):
    if not form.packed or form.backward or form.softcap or form.alibi or form.sink or form.bias or form.mask or form.kv:
        raise Unable("not for this form")


def pad(form, t):
    """Return packed sequences, padded to [B, heads, longest, D]."""
    out = torch.zeros(form.b, t.shape[1], form.n, form.d, dtype=t.dtype)
    for b, (begin, end) in enumerate(zip(form.starts(), form.starts()[1:])):
        out[b, :, : end - begin] = t[0, :, begin:end]
    return out


def unpad(form, t):
    return torch.cat([t[b : b + 1, :, :n] for b, n in enumerate(form.lens)], dim=2)


class Onnx(Side):
    """An ONNX Runtime model of one node, whose inputs and outputs are bound before the calls."""

    def __init__(self, op, domain, inputs, outputs, attributes, threads, form, shared=False):
        import onnxruntime
        from onnx import helper

        kind = lambda t: helper.np_dtype_to_tensor_dtype(t.dtype)
        given = {name: t for name, t in inputs.items() if t is not None}
        value = lambda name, t: helper.make_tensor_value_info(name, kind(t), list(t.shape))
        node = helper.make_node(op, [name if t is not None else "" for name, t in inputs.items()], list(outputs), domain=domain, **attributes)
        graph = helper.make_graph([node], "attention", [value(*item) for item in given.items()], [value(*item) for item in outputs.items()])
        model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 4
        try:
            session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception as reason:  # the library raises many types of errors
            raise Unable(str(reason)[-200:].strip()) from reason
        self.bound, self.result = session.io_binding(), None
        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(t)) for name, t in (given | outputs).items()}
        for name in given:
            self.bound.bind_ortvalue_input(name, values[name])
        for name in outputs:  # if shared, the cache is updated in place
            self.bound.bind_ortvalue_output(name, values[name.replace("present", "past") if shared else name])
        self.result = values[next(iter(outputs))]
        self.form, self.rows = form, op != "Attention"
        try:
            super().__init__(lambda: session.run_with_iobinding(self.bound), self.values)
        except Exception as reason:
            raise Unable(str(reason)[-200:].strip()) from reason

    def values(self):
        o = torch.from_numpy(self.result.numpy().copy()).float()
        if self.rows:
            o = o.reshape(o.shape[0], -1, self.form.h, self.form.d).transpose(1, 2)
        return {"o": unpad(self.form, o) if self.form.packed else o}


def array(t):
    return None if t is None else t.numpy()


def flat(t):
    """Convert a tensor [B, heads, rows, D] to an array [B, rows, heads*D]."""
    return t.transpose(1, 2).reshape(t.shape[0], t.shape[2], -1).numpy()


def onnx_types(form, *types):
    if form.backward or form.dtype not in types or form.kv:
        raise Unable("has no backward pass, and not every type")


def onnx_mha(form, x, threads):
    """Return ONNX Runtime's MultiHeadAttention, with key_padding_mask and attention_bias."""
    onnx_types(form, "f32")
    if form.softcap or form.alibi or form.sink or form.dropout or form.page or form.g != form.h or form.lens and not form.packed:
        raise Unable("has no such input")
    if form.causal and form.packed or form.mask and form.mask[:3] != (form.b, 1, 1) and form.mask[:2] != (form.b, 1):
        raise Unable("masks keys, or rows and keys of a sequence")
    mask = x["mask"][:, 0].to(torch.int32) if form.mask else None
    if form.mask and form.mask[2] == 1:
        mask = mask[:, 0]
    q, k, v = (x[name] for name in "qkv")
    if form.packed:
        q, k, v = (pad(form, t) for t in (q, k, v))
        mask = (torch.arange(form.m) < torch.tensor(form.lens)[:, None]).to(torch.int32)
    bias = x["bias"].expand(*form.bias[:2], form.n, form.m).contiguous() if form.bias else None
    inputs = {"query": flat(q), "key": flat(k), "value": flat(v), "bias": None, "key_padding_mask": array(mask), "attention_bias": array(bias)}
    while list(inputs.values())[-1] is None:
        inputs.popitem()
    attributes = {"num_heads": form.h, "unidirectional": int(form.causal)}
    return Onnx("MultiHeadAttention", "com.microsoft", inputs, {"o": np.empty_like(inputs["query"])}, attributes, threads, form)


def onnx_attention(form, x, threads):
    """Return Attention of the ONNX standard, opset 24, on [B, heads, rows, D], with bool or float attn_mask, softcap and nonpad_kv_seqlen."""
    onnx_types(form, "f32", "f16")
    if form.alibi or form.sink or form.dropout or form.page or form.lens and not form.packed:
        raise Unable("has no such input")
    q, k, v = (pad(form, x[name]) if form.packed else x[name] for name in "qkv")
    extra, lens = x.get("mask"), form.mask_lens or form.lens
    if form.bias:
        extra = x["bias"] if extra is None else x["bias"].masked_fill(~extra, -torch.inf)
    elif form.mask_lens:
        extra = None
    if extra is not None:
        extra = extra.expand(*extra.shape[:2], form.n, form.m).contiguous()
    lens = np.array(lens, np.int64) if lens else None
    if form.causal and (form.n != form.m or lens is not None):
        raise Unable("is_causal counts from the first key, with lengths from the last")
    inputs = {"Q": array(q), "K": array(k), "V": array(v), "attn_mask": array(extra), "past_key": None, "past_value": None, "nonpad_kv_seqlen": lens}
    while list(inputs.values())[-1] is None:
        inputs.popitem()
    return Onnx("Attention", "", inputs, {"Y": np.empty_like(inputs["Q"])}, {"is_causal": int(form.causal), "softcap": float(form.softcap)}, threads, form)


def onnx_gqa(form, x, threads):
    """Return ONNX Runtime's GroupQueryAttention, with softcap, head_sink and seqlens_k. In decode, it appends the last key to the cache in place."""
    onnx_types(form, "f32", "f16")
    if form.alibi or form.dropout or form.mask or form.ranges or form.page or form.lens and not form.packed or form.bias and form.bias[2] == 1:
        raise Unable("has no such input")
    if not form.causal and form.n != form.m:
        raise Unable("decode is causal")
    q, k, v = (pad(form, x[name]) if form.packed else x[name] for name in "qkv")
    past, new = form.m - form.n, form.n
    lens = form.lens if form.packed else (form.m,) * form.b
    cache = [t.clone().numpy() if past else None for t in (k, v)]
    scale = np.full(1, forms_problem.INT8_SCALE, np.float32) if form.int8 else None
    if form.int8:
        k, v = (t * forms_problem.INT8_SCALE for t in (k, v))
    inputs = {"query": flat(q), "key": flat(k[:, :, past:]), "value": flat(v[:, :, past:]), "past_key": cache[0], "past_value": cache[1],
              "seqlens_k": np.array(lens, np.int32) - 1, "total_sequence_length": np.array(form.m, np.int32), "cos": None, "sin": None, "at": None,
              "attention_bias": array(x.get("bias")), "head_sink": array(x["sink"].reshape(-1).to(q.dtype)) if form.sink else None, "k_scale": scale, "v_scale": scale}
    while list(inputs.values())[-1] is None:
        inputs.popitem()
    present = np.empty((form.b, form.g, form.m, form.d), cache[0].dtype if form.int8 else inputs["query"].dtype)
    attributes = {"num_heads": form.h, "kv_num_heads": form.g, "softcap": float(form.softcap), "causal": int(form.causal)}
    if form.int8:
        attributes |= {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": 8}
    outputs = {"o": np.empty_like(inputs["query"]), "present_key": present, "present_value": present.copy()}
    return Onnx("GroupQueryAttention", "com.microsoft", inputs, outputs, attributes, threads, form, shared=past > 0)
