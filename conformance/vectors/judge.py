#!/usr/bin/env python3
"""Run attention implementations on the golden vectors and judge their outputs. Needs NumPy alone.

    python judge.py RUNNER.py                        a Python file with runners
    python judge.py ./program [ARGUMENT ...]         a program that takes a case's folder

README.md describes cases, programs and runners. flashrun judge gives the same verdicts on programs.
"""

import argparse
import fnmatch
import gzip
import importlib.util
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import xml.sax.saxutils

import numpy as np

sys.modules.setdefault("judge", sys.modules[__name__])  # runners import this file, also when it is the main program
HERE = pathlib.Path(__file__).resolve().parent
EXIT_UNSUPPORTED = 77
OUTPUTS = ("o", "lse", "dq", "dk", "dv", "dbias", "dsink", "rowmax", "keymass")
INPUTS = ("do", "dlse", "bias", "mask", "ranges", "kscale", "vscale", "slopes", "sink", "q_lens", "kv_lens", "earlier", "earlier_lse", "earlier_rowmax")
RUNNERS = []


class Unsupported(Exception):
    """Raised by a runner for a case that it cannot express, with the reason."""


def runner(name, takes="", dtypes="f32 f16 bf16"):
    """Register f(q, k, v, **case) as an implementation. It gets no case with a feature or type that is not listed."""

    def register(f):
        def limited(q, k, v, **case):
            missing = [x for x in case["features"] if x not in takes.split()]
            missing += [x for x in dict.fromkeys((case["dtype"], case["kv_dtype"])) if x not in dtypes.split()]
            if missing:
                raise Unsupported("no " + ", ".join(missing))
            return f(q, k, v, **case)

        RUNNERS.append((name, limited))
        return f

    return register


# Files.


def read_safetensors(blob):
    """Return (metadata, tensors). F16 and BF16 become float32."""
    size = int.from_bytes(blob[:8], "little")
    if size > len(blob) - 8:
        raise ValueError("the file is cut short")
    header, data, tensors = json.loads(blob[8 : 8 + size]), blob[8 + size :], {}
    metadata = header.pop("__metadata__", {})
    for name, entry in header.items():
        kind = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4", "I8": "i1", "BOOL": "?"}.get(entry["dtype"])
        begin, end = entry["data_offsets"]
        if kind is None:
            raise ValueError(f"tensor {json.dumps(name)}: dtype is {entry['dtype']}, want F32, F16 or BF16")
        if not 0 <= begin <= end <= len(data) or end - begin != math.prod(entry["shape"]) * np.dtype(kind).itemsize:
            raise ValueError(f"tensor {json.dumps(name)}: the offsets do not fit the shape")
        x = np.frombuffer(data[begin:end], kind)
        if entry["dtype"] == "BF16":
            x = (x.astype(np.uint32) << 16).view(np.float32)
        elif entry["dtype"] == "F16":
            x = x.astype(np.float32)
        tensors[name] = x.reshape(entry["shape"])
    return metadata, tensors


def write_safetensors(path, tensors):
    """Write {name: (type, array)}, with float32 arrays for all types of floats."""
    header, blobs, at = {}, [], 0
    for name, (dtype, x) in tensors.items():
        if dtype == "BF16":
            bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            blob = np.where(np.isnan(x), (bits >> 16) | 0x40, rounded).astype("<u2").tobytes()
        else:
            blob = np.ascontiguousarray(x).astype({"F32": "<f4", "F16": "<f2", "I32": "<i4", "I8": "i1", "BOOL": "?"}[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [at, at + len(blob)]}
        at += len(blob)
        blobs.append(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


# Cases.


def noise(label, shape):
    """Multiples of 1/16 in [-2, 2) from a hash of the label and the element's index."""
    seed = 2166136261
    for byte in label.encode():
        seed = (seed ^ byte) * 16777619 % 2**32
    h = np.arange(math.prod(shape), dtype=np.uint32) * np.uint32(0x9E3779B9) + np.uint32(seed)
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return ((h >> np.uint32(26)).astype(np.float32) - 32).reshape(shape) / 16


def spread(x, batch, heads):
    """A tensor of the grid: head h of batch b is pattern 3b+h modulo 8, with each row rotated by b."""
    turn = lambda y, b: np.roll(y, -b, axis=-1) if y.ndim == 2 else y
    return np.stack([np.stack([turn(x[0, (3 * b + h) % 8], b) for h in range(heads)]) for b in range(batch)])


class Case:
    """One case of the manifest in one type: task (the members of case.json), inputs and want."""

    def __init__(self, manifest, record, dtype):
        self.record, self.dtype, self.folder = record, dtype, HERE / manifest["folder"]
        self.name = record["name"] + ("" if dtype == "f32" else "-" + dtype)
        self.catches, self.bounds = record["catches"], record["bounds"][dtype]
        self.task = {k: v for k, v in record.items() if k not in ("file", "inputs")}
        self.task |= {"name": self.name, "dtype": dtype, "kv_dtype": record.get("kv_dtype", dtype), "bounds": {dtype: self.bounds}}
        self.task |= {k: float(record[k]) for k in ("scale", "softcap", "dropout")}
        self.task["problem"] = record["problem"].replace("-f32", "-" + dtype, 1)
        if "bias" in record["features"]:
            self.task["bias_dtype"] = record.get("bias_dtype", dtype)

    def load(self):
        """Read the golden vector. Set self.inputs and self.want."""
        r = self.record
        metadata, x = read_safetensors(gzip.decompress((self.folder / r["file"]).read_bytes()))
        if r["inputs"] != "stored":
            heads, kv = [1, 8] if r["inputs"] == "patterns" else [r["batch"], r["heads"]], r["kv_heads"]
            groups = [1, 8] if r["inputs"] == "patterns" else [r["batch"], kv]
            for name, lead, tail in (("q", heads, [r["q_len"], r["dim"]]), ("k", groups, [r["kv_len"], r["dim"]]),
                                     ("v", groups, [r["kv_len"], r["v_dim"]]), ("do", heads, [r["q_len"], r["v_dim"]])):
                x[name] = noise(f"{metadata['case']}/{name}", lead + tail)
        if r["inputs"] == "patterns":
            x = {name: spread(y, r["batch"], r["heads"]) for name, y in x.items()}
        for name in ("slopes", "earlier_lse", "earlier_rowmax", "dlse"):
            if name in x:
                x[name] = x[name].reshape(x[name].shape[: 2 if name == "slopes" else 3])
        for name in ("sink", "dsink"):
            if name in x:
                x[name] = x[name].reshape(-1)
        for name in ("q_lens", "kv_lens"):
            if name in x:
                x[name] = x[name].reshape(-1).astype(np.int32)
        if "mask" in x:
            x["mask"] = x["mask"] != 0
        if "ranges" in x:
            x["ranges"] = x["ranges"].astype(np.int32)
        if group := r.get("int8_group"):  # the vector has products of int8 elements and scales
            for name, scales in (("k", x["kscale"]), ("v", x["vscale"])):
                by = np.repeat(scales, group, -1)[..., : x[name].shape[-1]]
                x[name] = np.divide(x[name], by, out=np.ones_like(x[name]), where=np.isfinite(by) & (by != 0)).astype(np.int8)
            self.task["kv_dtype"] = "i8"
        if "dq" not in r["outputs"]:
            x.pop("do", None)
        self.want = {name: x[name] for name in r["outputs"]}
        self.inputs = {name: x[name] for name in ("q", "k", "v") + INPUTS if name in x}

    def write(self, folder):
        """Write case.json and inputs.safetensors."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "outputs.safetensors").unlink(missing_ok=True)
        (folder / "case.json").write_text(json.dumps(self.task, indent=1) + "\n")
        types = {"q_lens": "I32", "kv_lens": "I32", "ranges": "I32", "mask": "BOOL", "bias": self.task.get("bias_dtype", "").upper()}
        types |= dict.fromkeys(("dlse", "kscale", "vscale", "slopes", "sink", "earlier_lse", "earlier_rowmax"), "F32") | dict.fromkeys("kv", self.task["kv_dtype"].upper())
        write_safetensors(folder / "inputs.safetensors",
                          {name: (types.get(name, self.dtype.upper()), x) for name, x in self.inputs.items()})


def cases(pattern="*"):
    """Return the cases of the manifest whose names match the pattern, each in all its types."""
    manifest = json.loads((HERE / "manifest.json").read_text())
    if manifest["version"] != 1:
        raise SystemExit(f"judge: manifest.json has version {manifest['version']}, this judge reads version 1")
    every = (Case(manifest, r, t) for r in manifest["cases"] for t in ("f32", "f16", "bf16") if t in r["bounds"])
    return [c for c in every if fnmatch.fnmatchcase(c.name, pattern)]


# What runners for libraries with dense masks and biases use.


def visible(case):
    """Return which keys each row sees by band, lengths, mask and ranges, as bool [B, H, N, M], or None if it sees all."""
    b, h, n, m = case["batch"], case["heads"], case["q_len"], case["kv_len"]
    if not {"window", "ragged", "mask", "ranges"} & set(case["features"]):
        return None
    i, j, off = positions(case)
    shown = np.ones((b, 1, n, m), bool)
    if case["left"] is not None:
        shown &= j >= i + off - case["left"]
    if case["right"] is not None:
        shown &= j <= i + off + case["right"]
    for name, at in (("q_lens", i), ("kv_lens", j)):
        if case[name] is not None:
            shown &= at < case[name].reshape(b, 1, 1, 1)
    if case["ranges"] is not None:
        ends = case["ranges"][..., None]
        shown = shown & sum((j >= ends[..., r, :]) & (j < ends[..., r + 1, :]) for r in range(0, ends.shape[3], 2)).astype(bool)
    shown = np.broadcast_to(shown, (b, h, n, m))
    return shown if case["mask"] is None else shown & case["mask"]


def positions(case):
    """Return row numbers, key numbers, and the offset of the diagonal for each sequence."""
    b, n, m = case["batch"], case["q_len"], case["kv_len"]
    i, j = np.arange(n).reshape(1, 1, n, 1), np.arange(m).reshape(1, 1, 1, m)
    rows, keys = (case[x] if case[x] is not None else np.full(b, y) for x, y in (("q_lens", n), ("kv_lens", m)))
    off = np.zeros(b, int) if case["top_left"] else keys.astype(int) - rows
    return i, j, (off + case["shift"]).reshape(b, 1, 1, 1)


def added(case):
    """Return the sum of bias and ALiBi for each score, as float32 [B|1, H|1, N|1, M], or None."""
    total = case["bias"]
    if case["slopes"] is not None:
        i, j, off = positions(case)
        slopes = np.where(np.isfinite(case["slopes"]), case["slopes"], np.nan)
        alibi = -slopes[:, :, None, None] * np.abs(j - i - off).astype(np.float32)
        total = alibi if total is None else total + alibi
    return total


# Verdicts.


def number(x):
    """Return x as JSON stores it: a number, or NaN, Inf or -Inf."""
    x = float(x)
    return x if math.isfinite(x) else "NaN" if math.isnan(x) else "Inf" if x > 0 else "-Inf"


def shown(x):
    return x if isinstance(x, str) else f"{x:.6g}"


def fault(name, got, want, bound, lse):
    """Return the fault of an output, or None if all elements are within their bounds."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore"):
        off = np.abs(got - want)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    off = np.where(same, 0, np.where(np.isfinite(off), off, np.inf))
    limit = np.full(want.shape, bound)
    if name in ("lse", "rowmax"):
        far = np.isfinite(want) & (np.abs(want) >= 2**20)
        limit[far] = np.abs(want[far]) * 2.0**-22
    wrong = off > limit
    if not wrong.any():
        return None
    at = np.unravel_index((off - limit).argmax(), want.shape)
    empty = name in ("o", "lse", "dq") and bool((lse == -np.inf)[wrong if name == "lse" else wrong.any(-1)].all())
    return {"output": name, "at": [int(i) for i in at], "got": number(got[at]), "want": number(want[at]), "error": number(off[at]),
            "bound": number(limit[at]), "wrong": int(wrong.sum()), "of": int(wrong.size), "empty": empty}


def line(f):
    """Return a fault as one line."""
    text = f"{f['output']}{str(f['at']).replace(',', '')} = {shown(f['got'])}, want {shown(f['want'])}: off by {shown(f['error'])}, "
    text += f"bound {shown(f['bound'])}; {f['wrong']} of {f['of']} elements are wrong"
    return text + (", all in rows that see no key" if f["empty"] else "")


def judge(case, outputs):
    """Return (judged, faults) of the outputs, a dict of arrays. Raise ValueError if the outputs break the rules."""
    if "o" not in outputs:
        raise ValueError('tensor "o" is missing')
    for name in outputs:
        if name not in case.want:
            raise ValueError(f'tensor "{name}": the case has no such output')
    judged, faults = [], []
    for name in (x for x in OUTPUTS if x in outputs):
        got, want = np.asarray(outputs[name]), case.want[name]
        if got.dtype.kind != "f":
            raise ValueError(f'tensor "{name}": dtype is {got.dtype}, want F32, F16 or BF16')
        if got.shape != want.shape:
            raise ValueError(f'tensor "{name}": shape is {list(got.shape)}, want {list(want.shape)}'.replace(",", ""))
        judged.append(name)
        if found := fault(name, got, want, case.bounds[name], case.want["lse"]):
            faults.append(found)
    return judged, faults


def run_callable(f):
    def run(case, folder):
        task = {**dict.fromkeys(INPUTS), **case.task, **case.inputs}
        task.pop("bounds")
        q, k, v = (np.array(task.pop(x)) for x in "qkv")
        return {name: np.asarray(x) for name, x in f(q, k, v, **task).items()}

    return run


def run_program(program, timeout):
    def run(case, folder):
        folder = folder / case.name
        case.write(folder)
        try:
            done = subprocess.run([*program, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"no result after {timeout} s") from None
        reason = done.stdout.decode(errors="replace").strip().split("\n")[-1].strip()
        if done.returncode == EXIT_UNSUPPORTED and reason:
            raise Unsupported(reason)
        if done.returncode:
            raise RuntimeError(f"exit status {done.returncode}: {reason}")
        if not (folder / "outputs.safetensors").exists():
            raise RuntimeError("outputs.safetensors is missing")
        return read_safetensors((folder / "outputs.safetensors").read_bytes())[1]

    return run


def run(name, implementation, chosen, folder):
    """Run an implementation on cases. Return its report."""
    report = {"name": name, "passed": 0, "failed": 0, "unsupported": 0, "results": []}
    for case in chosen:
        result = {"case": case.name, "catches": case.catches, "status": "failed"}
        try:
            case.load()
            judged, faults = judge(case, implementation(case, folder))
            result |= {"judged": judged} | ({"faults": faults} if faults else {"status": "passed"})
        except Unsupported as reason:
            result |= {"status": "unsupported", "reason": str(reason)}
        except Exception as error:  # of the implementation: the case fails
            first = (str(error).strip() or repr(error)).split("\n")[0][:300]
            result["reason"] = first if isinstance(error, (ValueError, RuntimeError)) else f"{type(error).__name__}: {first}"
        report[result["status"]] += 1
        report["results"].append(result)
        case.inputs = case.want = None
    return report


# Reports.


def lines(result):
    return ([result["reason"]] if "reason" in result else []) + [line(f) for f in result.get("faults", [])]


def text(reports, again):
    for r in reports:
        for x in (x for x in r["results"] if x["status"] == "failed"):
            yield f"FAIL {x['case']}: " + "\n     ".join(lines(x))
            if x["catches"]:
                yield f"     this case catches: {x['catches']}"
            yield f"     rerun: {again(x['case'])}"
        reasons = [x["reason"] for x in r["results"] if x["status"] == "unsupported"]
        yield from (f"unsupported: {reason}: {reasons.count(reason)} cases" for reason in dict.fromkeys(reasons))
        yield f"{r['name']}: {r['passed']} passed, {r['failed']} failed, {r['unsupported']} unsupported"


def markdown(reports, again):
    cell = lambda s: s.replace("|", r"\|").replace("<", "&lt;").replace("\n", " ")
    for r in reports:
        yield f"{cell(r['name'])}: {r['passed']} passed, {r['failed']} failed, {r['unsupported']} unsupported\n\n| case | catches | difference |\n|---|---|---|"
        yield from (f"| `{x['case']}` | {cell(x['catches'])} | {cell('; '.join(lines(x)))} |" for x in r["results"] if x["status"] == "failed")
        yield ""


def junit(reports, again):
    quote = xml.sax.saxutils.quoteattr
    yield '<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>'
    for r in reports:
        yield f'<testsuite name={quote(r["name"])} tests="{len(r["results"])}" failures="{r["failed"]}" skipped="{r["unsupported"]}">'
        for x in r["results"]:
            inner = {"passed": "", "unsupported": f"<skipped message={quote(x.get('reason', ''))}/>"}.get(x["status"])
            if inner is None:
                inner = f"<failure message={quote(x['catches'])}>" + xml.sax.saxutils.escape("\n".join([*lines(x), "rerun: " + again(x["case"])])) + "</failure>"
            yield f'<testcase name={quote(x["case"])} classname={quote(r["name"])}>{inner}</testcase>'
        yield "</testsuite>"
    yield "</testsuites>"


def load_runners(path):
    """Import a Python file. Return its runners, or its function attention as the only one."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # compilers import a function's module by its name
    spec.loader.exec_module(module)
    return RUNNERS or [(path.stem, module.attention)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="*", metavar="PATTERN", help="only cases whose name matches, such as 'causal_*'")
    parser.add_argument("--format", default="text", choices=("text", "json", "markdown", "junit"))
    parser.add_argument("--keep", type=pathlib.Path, metavar="FOLDER", help="keep the folders of a program's cases in FOLDER")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="time limit of a program for one case")
    parser.add_argument("runner", nargs=argparse.REMAINDER, help="a Python file with runners, or a program with its arguments")
    args = parser.parse_args()
    command = args.runner[1:] if args.runner[:1] == ["--"] else args.runner
    chosen = cases(args.case)
    if not command or not chosen:
        parser.error("the runner is missing" if not command else f"no case matches {args.case!r}")
    again = lambda name: f"python {sys.argv[0]} --case {name} {' '.join(command)}"
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        folder = args.keep or pathlib.Path(folder)
        if len(command) == 1 and command[0].endswith(".py"):
            reports = [run(name, run_callable(f), chosen, folder) for name, f in load_runners(pathlib.Path(command[0]))]
        else:
            reports = [run(" ".join(command), run_program(command, args.timeout), chosen, folder)]
    if args.format == "json":
        print(json.dumps(reports, indent=1, allow_nan=False))
    else:
        print("\n".join({"text": text, "markdown": markdown, "junit": junit}[args.format](reports, again)))
    sys.exit(any(r["failed"] for r in reports))


if __name__ == "__main__":
    main()
