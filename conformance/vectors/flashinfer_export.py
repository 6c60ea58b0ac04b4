#!/usr/bin/env python3
"""Export cases as FlashInfer Trace definitions with workloads, and check them by flashinfer-bench.

    python flashinfer_export.py FOLDER [--case PATTERN] [--sample N]

FOLDER becomes a data set of flashinfer-bench: definitions, workloads, and their tensors in blob. A case in a
type has a workload in each form that can express it, with the case's name as its uuid. The forms are
gqa_ragged_prefill, gqa_ragged_prefill_causal, gqa_paged_decode and mla_paged_decode. The tensors
want_output and want_lse are the expected outputs; FOLDER/bounds.json has their largest absolute errors.
FOLDER/index.json lists the exports, and the cases that no form can express with the reasons. The script
reads the folder again with flashinfer-bench's classes, runs each definition's reference on the CPU,
and judges its outputs. The exit status is 1 if a reference fails. Install: numpy, torch, flashinfer-bench.
"""

import json
import math
import zlib

import numpy as np
import torch
from flashinfer_bench.bench.utils import gen_inputs, load_safetensors
from flashinfer_bench.data import Definition, TraceSet, Workload

import exporting
import judge

DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
FEATURES = "gqa v_dim scale window top_left shift ragged page dlse".split()

# The references, in float32. LSE is in base 2; a row without keys has o = 0 and lse = -Inf.
RAGGED = '''
import math
import torch

@torch.no_grad()
def run(q, k, v, qo_indptr, kv_indptr, sm_scale):
    output = torch.zeros(q.shape[0], q.shape[1], v.shape[2], dtype=q.dtype, device=q.device)
    lse = torch.full(q.shape[:2], -math.inf, dtype=torch.float32, device=q.device)
    group = q.shape[1] // k.shape[1]
    for s in range(len(qo_indptr) - 1):
        q0, q1 = int(qo_indptr[s]), int(qo_indptr[s + 1])
        k0, k1 = int(kv_indptr[s]), int(kv_indptr[s + 1])
        for i in range(q0, q1):
            last = LAST
            if last <= k0:
                continue
            ks = k[k0:last].float().repeat_interleave(group, dim=1)
            vs = v[k0:last].float().repeat_interleave(group, dim=1)
            scores = torch.einsum("hd,khd->hk", q[i].float(), ks) * sm_scale
            lse[i] = torch.logsumexp(scores, dim=1) / math.log(2)
            output[i] = torch.einsum("hk,khd->hd", torch.softmax(scores, dim=1), vs).to(q.dtype)
    return output, lse
'''
PAGED = '''
import math
import torch

@torch.no_grad()
def run(q, k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len, sm_scale):
    output = torch.zeros_like(q)
    lse = torch.full(q.shape[:2], -math.inf, dtype=torch.float32, device=q.device)
    page, group = k_cache.shape[1], q.shape[1] // k_cache.shape[2]
    for s in range(q.shape[0]):
        pages = kv_indices[int(kv_indptr[s]) : int(kv_indptr[s + 1])].long()
        if len(pages) == 0:
            continue
        keys = (len(pages) - 1) * page + int(kv_last_page_len[s])
        ks = k_cache[pages].flatten(0, 1)[:keys].float().repeat_interleave(group, dim=1)
        vs = v_cache[pages].flatten(0, 1)[:keys].float().repeat_interleave(group, dim=1)
        scores = torch.einsum("hd,khd->hk", q[s].float(), ks) * sm_scale
        lse[s] = torch.logsumexp(scores, dim=1) / math.log(2)
        output[s] = torch.einsum("hk,khd->hd", torch.softmax(scores, dim=1), vs).to(q.dtype)
    return output, lse
'''
MLA = '''
import math
import torch

@torch.no_grad()
def run(q_nope, q_pe, ckv_cache, kpe_cache, kv_indptr, kv_indices, kv_last_page_len, sm_scale):
    output = torch.zeros_like(q_nope)
    lse = torch.full(q_nope.shape[:2], -math.inf, dtype=torch.float32, device=q_nope.device)
    page = ckv_cache.shape[1]
    for s in range(q_nope.shape[0]):
        pages = kv_indices[int(kv_indptr[s]) : int(kv_indptr[s + 1])].long()
        if len(pages) == 0:
            continue
        keys = (len(pages) - 1) * page + int(kv_last_page_len[s])
        ckv = ckv_cache[pages].flatten(0, 1)[:keys].float()
        kpe = kpe_cache[pages].flatten(0, 1)[:keys].float()
        scores = (q_nope[s].float() @ ckv.T + q_pe[s].float() @ kpe.T) * sm_scale
        lse[s] = torch.logsumexp(scores, dim=1) / math.log(2)
        output[s] = (torch.softmax(scores, dim=1) @ ckv).to(q_nope.dtype)
    return output, lse
'''


class Sequences:
    """The sequences of a case: their numbers of rows and keys, and which rows exist."""

    def __init__(self, case):
        self.task = task = exporting.members(case)
        b, n, m = task["batch"], task["q_len"], task["kv_len"]
        self.rows = [int(x) for x in task["q_lens"]] if task["q_lens"] is not None else [n] * b
        self.keys = [int(x) for x in task["kv_lens"]] if task["kv_lens"] is not None else [m] * b

    def pack(self, x, lengths):
        """Return [B, H, N, D] as [rows of all sequences, H, D]."""
        return np.concatenate([x[:0, 0].reshape(0, x.shape[1], x.shape[3]), *(x[b, :, :n].swapaxes(0, 1) for b, n in enumerate(lengths))])

    def unpack(self, x, like, value):
        """Return packed rows as [B, H, N, ...]; rows beyond the lengths have the value."""
        padded, at = np.full(like.shape, value, np.float64), 0
        for b, n in enumerate(self.rows):
            padded[b, :, :n] = np.moveaxis(x[at : at + n], 1, 0)
            at += n
        return padded


def band(seqs):
    """Return whether each row sees all keys of its sequence (whole), and those up to the diagonal of the last row and key (causal)."""
    task, whole, causal = seqs.task, True, True
    shown = judge.visible(task)
    if shown is None:
        return True, False
    for b, (n, m) in enumerate(zip(seqs.rows, seqs.keys)):
        i, j = np.arange(n)[:, None], np.arange(m)
        whole &= bool(shown[b, :, :n, :m].all())
        causal &= bool((shown[b, :, :n, :m] == (j <= i + m - n)).all())
    return whole, causal and "window" in task["features"]


def tensor(shape, dtype):
    return {"shape": shape.split() if shape else None, "dtype": dtype}


def definition(name, op, consts, inputs, rows, width, dtype, constraints, reference, text):
    """Return a definition. Axes that are not in consts are variable."""
    outputs = {"output": tensor(f"{rows} num_qo_heads {width}", dtype), "lse": tensor(f"{rows} num_qo_heads", "float32")}
    axes = dict.fromkeys(axis for x in (*inputs.values(), *outputs.values()) for axis in x["shape"] or [])
    return {"name": name, "op_type": op, "description": text, "tags": ["framework:flashkit"],
            "axes": {axis: {"type": "const", "value": consts[axis]} if axis in consts else {"type": "var"} for axis in axes},
            "inputs": inputs, "outputs": outputs, "constraints": constraints, "reference": reference.lstrip()}


def ragged(seqs, dtype, whole, causal):
    """Yield the case as gqa_ragged_prefill, as gqa_ragged_prefill_causal, or as both."""
    task = seqs.task
    consts = {"num_qo_heads": task["heads"], "num_kv_heads": task["kv_heads"], "head_dim": task["dim"], "head_dim_vo": task["v_dim"]}
    width = "head_dim" if task["dim"] == task["v_dim"] else "head_dim_vo"
    kind = DTYPES[dtype]
    inputs = {"q": tensor("total_q num_qo_heads head_dim", kind), "k": tensor("total_kv num_kv_heads head_dim", kind),
              "v": tensor(f"total_kv num_kv_heads {width}", kind), "qo_indptr": tensor("len_indptr", "int32"),
              "kv_indptr": tensor("len_indptr", "int32"), "sm_scale": tensor("", "float32")}
    arrays = {"q": seqs.pack(task["q"], seqs.rows), "k": seqs.pack(task["k"], seqs.keys), "v": seqs.pack(task["v"], seqs.keys),
              "qo_indptr": starts(seqs.rows), "kv_indptr": starts(seqs.keys)}
    for fits, form, last, text in ((whole, "gqa_ragged_prefill", "k1", "Each row sees all keys of its sequence."),
                                   (causal, "gqa_ragged_prefill_causal", "k1 - (q1 - 1 - i)", "The last row of a sequence sees all its keys, and each row above one less.")):
        if fits:
            name = f"{form}_h{task['heads']}_kv{task['kv_heads']}_d{task['dim']}" + (f"_vo{task['v_dim']}" if width == "head_dim_vo" else "") + f"_{dtype}"
            constraints = ["total_q == qo_indptr[-1].item()", "total_kv == kv_indptr[-1].item()"]
            yield definition(name, "gqa_ragged", consts, inputs, "total_q", width, kind, constraints, RAGGED.replace("LAST", last), text), arrays


def starts(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def paged(seqs, page, x):
    """Return the keys x [B, G, M, D] in shuffled pages [pages, page, G, D]. What no key fills is NaN, and so is page 0."""
    counts, order = table(seqs, page)
    pool = np.full((sum(counts) + 1, page, x.shape[1], x.shape[3]), np.nan, np.float32)
    for b, (m, ids) in enumerate(zip(seqs.keys, order)):
        for j in range(m):
            pool[ids[j // page], j % page] = x[b, :, j]
    return pool


def table(seqs, page):
    """Return each sequence's number of pages, and their numbers in the pool: a permutation by the case's name."""
    counts = [-(-m // page) for m in seqs.keys]
    order = 1 + np.random.default_rng(zlib.crc32(seqs.task["name"].encode())).permutation(sum(counts))
    return counts, np.split(order, np.cumsum(counts)[:-1]) if counts else []


def decode(seqs, dtype):
    """Yield the case as gqa_paged_decode and mla_paged_decode. Each row is a request; rows of a sequence share its pages."""
    task, kind, page = seqs.task, DTYPES[dtype], seqs.task["page"] or 1
    counts, order = table(seqs, page)
    requests = [b for b, n in enumerate(seqs.rows) for _ in range(n)]
    arrays = {"kv_indptr": starts([counts[b] for b in requests]),
              "kv_indices": np.concatenate([np.zeros(0, int), *(order[b] for b in requests)]).astype(np.int32),
              "kv_last_page_len": np.array([seqs.keys[b] - max(counts[b] - 1, 0) * page for b in requests], np.int32)}
    tables = {"kv_indptr": tensor("len_indptr", "int32"), "kv_indices": tensor("num_kv_indices", "int32"),
              "kv_last_page_len": tensor("batch_size", "int32"), "sm_scale": tensor("", "float32")}
    constraints = ["len_indptr == batch_size + 1", "num_kv_indices == kv_indptr[-1].item()"]
    q, h, g, d, dv = seqs.pack(task["q"], seqs.rows), task["heads"], task["kv_heads"], task["dim"], task["v_dim"]
    if d == dv:
        inputs = {"q": tensor("batch_size num_qo_heads head_dim", kind), "k_cache": tensor("num_pages page_size num_kv_heads head_dim", kind),
                  "v_cache": tensor("num_pages page_size num_kv_heads head_dim", kind), **tables}
        consts = {"num_qo_heads": h, "num_kv_heads": g, "head_dim": d, "page_size": page}
        yield definition(f"gqa_paged_decode_h{h}_kv{g}_d{d}_ps{page}_{dtype}", "gqa_paged", consts, inputs, "batch_size", "head_dim", kind, constraints, PAGED,
                         "Each request is a row that sees all keys of its pages. Memory behind the last key of a page is NaN."), {
            "q": q, "k_cache": paged(seqs, page, task["k"]), "v_cache": paged(seqs, page, task["v"]), **arrays}
    if g == 1 and np.isfinite(task["v"]).all():
        inputs = {"q_nope": tensor("batch_size num_qo_heads head_dim_ckv", kind), "q_pe": tensor("batch_size num_qo_heads head_dim_kpe", kind),
                  "ckv_cache": tensor("num_pages page_size head_dim_ckv", kind), "kpe_cache": tensor("num_pages page_size head_dim_kpe", kind), **tables}
        consts = {"num_qo_heads": h, "head_dim_ckv": dv, "head_dim_kpe": d, "page_size": page}
        yield definition(f"mla_paged_decode_h{h}_ckv{dv}_kpe{d}_ps{page}_{dtype}", "mla_paged", consts, inputs, "batch_size", "head_dim_ckv", kind, constraints, MLA,
                         "The workloads have V in ckv_cache, K in kpe_cache, and q_nope = 0. Memory behind the last key of a page is NaN."), {
            "q_nope": np.zeros((*q.shape[:2], dv), np.float32), "q_pe": q, "ckv_cache": paged(seqs, page, task["v"])[:, :, 0],
            "kpe_cache": paged(seqs, page, task["k"])[:, :, 0], **arrays}


def forms(case):
    """Return the case as (definition, arrays) in each form that can express it. Raise judge.Unsupported if none can."""
    seqs = Sequences(case)
    for feature in seqs.task["features"]:
        if feature not in FEATURES:
            raise judge.Unsupported(f"features: {feature}: no form has it")
    whole, causal = band(seqs)
    if not whole and not causal:
        raise judge.Unsupported("left, right, top_left, shift: the forms have no band but a causal one that ends at the last row and key")
    found = list(ragged(seqs, case.dtype, whole, causal))
    if whole and (seqs.task["page"] or seqs.task["q_len"] == 1):
        found += decode(seqs, case.dtype)
    return seqs, found


def write(case, folder):
    """Write the case's definitions, workloads and tensors. Return the names of its definitions."""
    seqs, found = forms(case)
    kind = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int32": "I32"}
    for entry, arrays in found:
        place = f"{entry['op_type']}/{entry['name']}"
        blob = f"blob/workloads/{place}/{case.name}.safetensors"
        wants = {"want_output": (kind[DTYPES[case.dtype]], seqs.pack(case.want["o"], seqs.rows)),
                 "want_lse": ("F32", seqs.pack(case.want["lse"][..., None], seqs.rows)[..., 0] / math.log(2))}
        (folder / blob).parent.mkdir(parents=True, exist_ok=True)
        judge.write_safetensors(folder / blob, {name: (kind[entry["inputs"][name]["dtype"]], x) for name, x in arrays.items()} | wants)
        shapes = [(spec["shape"], arrays[name].shape) for name, spec in entry["inputs"].items() if spec["shape"]]
        workload = {"uuid": case.name, "axes": {axis: n for names, shape in shapes for axis, n in zip(names, shape) if entry["axes"][axis]["type"] == "var"},
                    "inputs": {name: {"type": "safetensors", "path": blob, "tensor_key": name} for name in arrays} | {
                        "sm_scale": {"type": "scalar", "value": case.task["scale"]}}}
        Definition.model_validate(entry)
        Workload.model_validate(workload)
        path = folder / f"definitions/{place}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(entry, indent=1) + "\n")
        path = folder / f"workloads/{place}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as lines:
            lines.write(json.dumps({"definition": entry["name"], "workload": workload}) + "\n")
    return [entry["name"] for entry, _ in found]


def fault(case, outputs):
    """Return how outputs of run differ from the loaded case as one line, or None."""
    seqs = Sequences(case)
    o, lse = (np.asarray(x.float(), np.float64) for x in outputs)
    _, faults = judge.judge(case, {"o": seqs.unpack(o, case.want["o"], 0), "lse": seqs.unpack(lse * math.log(2), case.want["lse"], -np.inf)})
    return "; ".join(map(judge.line, faults)) or None


def check(folder, chosen):
    """Read the folder with flashinfer-bench and run every reference. Return the failures."""
    traces, wrong, byname = TraceSet.from_path(str(folder)), [], {case.name: case for case in chosen}
    for name, entries in traces.workloads.items():
        entry, scope = traces.definitions[name], {}
        exec(compile(entry.reference, name, "exec"), scope)
        for trace in entries:
            case = byname[trace.workload.uuid]
            case.load()
            x = gen_inputs(entry, trace.workload, "cpu", load_safetensors(entry, trace.workload, folder))
            outputs = scope["run"](*x)
            shapes = [list(y.shape) for y in outputs]
            if shapes != entry.get_output_shapes(trace.workload.axes) or [y.dtype for y in outputs] != entry.torch_output_dtypes:
                wrong.append(f"{name} {case.name}: outputs have other shapes or types than the definition")
            elif difference := fault(case, outputs):
                wrong.append(f"{name} {case.name}: {difference}")
    return wrong


def export(chosen, folder):
    """Export the cases and check them. Return the index, and a list of wrong exports."""
    torch.set_num_threads(1)  # the tensors are small
    index, bounds = {"definitions": {}, "unsupported": {}}, {}
    for case in chosen:
        case.load()
        try:
            index["definitions"][case.name] = write(case, folder)
            bounds[case.name] = {"output": case.bounds["o"], "lse": case.bounds["lse"] / math.log(2)}
        except judge.Unsupported as reason:
            index["unsupported"][case.name] = str(reason)
    (folder / "bounds.json").write_text(json.dumps(bounds, indent=1) + "\n")
    return index, check(folder, chosen)


def main():
    with exporting.folder(__doc__) as (chosen, folder):
        index, wrong = export(chosen, folder)
        names = [name for found in index["definitions"].values() for name in found]
        exporting.finish(folder, index, wrong, f"{len(set(names))} definitions, {len(names)} workloads of {len(index['definitions'])} cases, "
                         f"{len(index['unsupported'])} unsupported, {len(wrong)} wrong")


if __name__ == "__main__":
    main()
