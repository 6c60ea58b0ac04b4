"""Run flashrun on NumPy arrays: what the comparisons with other implementations share."""

import json
import pathlib
import struct
import subprocess
import tempfile

import numpy as np

NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL", "int32": "I32", "int64": "I64"}
TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # NumPy types of outputs


class Refused(Exception):
    """What flashrun says when it does not run."""


def save(path, tensors):
    """Write arrays as a safetensors file; the machine must be little endian."""
    header, at = {}, 0
    arrays = {name: np.ascontiguousarray(x) for name, x in tensors.items()}
    for name, x in arrays.items():
        header[name] = {"dtype": NAMES[x.dtype.name], "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for x in arrays.values():
            f.write(x.tobytes())


def load(path):
    """Read the arrays of a safetensors file. Those of BF16 become float32."""
    data = pathlib.Path(path).read_bytes()
    (n,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + n])
    header.pop("__metadata__", None)
    tensors = {}
    for name, x in header.items():
        begin, end = (8 + n + at for at in x["data_offsets"])
        t = np.frombuffer(data[begin:end], TYPES[x["dtype"]]).reshape(x["shape"])
        tensors[name] = t if x["dtype"] != "BF16" else (t.astype("<u4") << 16).view("<f4")
    return tensors


def run(flashrun, tensors, flags=()):
    """Return what flashrun run writes for tensors, under the names of its file."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = f"{folder}/in.safetensors", f"{folder}/out.safetensors"
        save(source, tensors)
        command = [flashrun, "run", "--in", source, "--out", target, "--repeat", "1", *map(str, flags)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Refused(done.stderr.strip() or f"exit status {done.returncode}")
        return load(target)
