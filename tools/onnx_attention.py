#!/usr/bin/env python3
"""Run the node tests of ONNX's Attention operator against flashrun.

    make onnx
    python onnx_attention.py bin/flashrun [--case 'test_attention_3d*']

The tests are those of the package onnx: inputs, attributes and wanted outputs of
Attention-23 to -25, without the ones that expand the operator into others. Each
becomes calls of flashrun run:

  3-D inputs              [batch, rows, heads, elements], --layout bshd
  attn_mask               the tensor mask if it is bool, else bias; a short one is padded as the operator says
  past_key, past_value    in front of K and V; present_key and present_value are the same
  nonpad_kv_seqlen        kv_lens
  is_causal, windows      --window, from the first key with --top-left and --shift where the operator counts from
                          there, from the last one where it has nonpad_kv_seqlen
  scale, softcap          the flags
  qk_matmul_output        mode 3, weights: the output for V = 1. Modes 0 to 2, scores: LSE of one key alone

Outputs are compared with the tolerances of the tests and of the package's own runner. One line is printed for each
test that fails or cannot be expressed, and the number of those that pass. The exit
status is 1 if any fails.
"""

import argparse
import fnmatch
import sys
import warnings

import numpy as np

import flashrun

warnings.filterwarnings("ignore")


class Inexpressible(Exception):
    """Why flashrun cannot do what a test asks."""


def cases():
    """Return the node tests of the operator itself."""
    from onnx.backend.test.case.node import collect_testcases

    return [c for c in collect_testcases("Attention") if [n.op_type for n in c.model.graph.node] == ["Attention"]]


class Attention:
    """A test's node with its inputs, as flashrun takes them."""

    def __init__(self, program, case):
        from onnx import helper

        (node,) = case.model.graph.node
        (inputs, wanted), = case.data_sets
        given, rest = [name for name in node.input if name], iter(inputs)
        x = {name: next(rest) for name in given}
        names = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
        self.q, self.k, self.v, self.mask, past_k, past_v, self.lens = (
            x.get(node.input[i]) if i < len(node.input) and node.input[i] else None for i in range(len(names))
        )
        self.program = program
        self.wanted = dict(zip([name for name in node.output if name], wanted))
        self.outputs = list(node.output) + [""] * (4 - len(node.output))
        self.at = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if self.q.dtype.name not in ("float32", "float16", "bfloat16"):
            raise Inexpressible(f"tensors of {self.q.dtype}")
        self.flat = self.q.ndim == 3
        if self.flat:
            self.q = heads_of(self.q, self.at["q_num_heads"])
            self.k, self.v = (heads_of(t, self.at["kv_num_heads"]) for t in (self.k, self.v))
        self.past = 0
        if past_k is not None:
            self.past = past_k.shape[2]
            self.k, self.v = (np.concatenate(t, axis=2) for t in ((past_k, self.k), (past_v, self.v)))
        self.pad_mask()

    def pad_mask(self):
        """Give the mask a column for every key."""
        if self.mask is None:
            return
        missing = self.k.shape[2] - self.mask.shape[-1]
        hidden = False if self.mask.dtype == np.bool_ else -np.inf
        self.mask = np.pad(self.mask, [(0, 0)] * (self.mask.ndim - 1) + [(0, missing)], constant_values=hidden)

    def tensors(self, v):
        """Return the input file: Q, K, the given V, and what the test has beside."""
        x = {"q": self.q, "k": self.k, "v": v}
        if self.mask is not None:
            x["mask" if self.mask.dtype == np.bool_ else "bias"] = self.mask
        if self.lens is not None:
            x["kv_lens"] = self.lens
        return x

    def run(self, x, flags):
        """Run flashrun on [batch, heads, rows, elements], in the layout that the test has."""
        if not self.flat:
            return flashrun.run(self.program, x, flags)
        swap = lambda t: np.swapaxes(t, 1, 2)
        x = {name: swap(t) if name in ("q", "k", "v") else t for name, t in x.items()}
        return {name: swap(t) for name, t in flashrun.run(self.program, x, [*flags, "--layout", "bshd"]).items()}

    def window(self):
        """Return how many keys a row sees before and after its own, -1 for all."""
        left, right = self.at.get("left_window_size", -1), self.at.get("right_window_size", -1)
        if self.at.get("is_causal"):
            right = 0
        return left, right

    def band(self, top_left_shift=None):
        """Return the flags of the band; its diagonal is that of the operator unless another one is given."""
        left, right = self.window()
        if (left, right) == (-1, -1):
            return []
        flags = ["--window", ",".join("inf" if n < 0 else str(n) for n in (left, right))]
        if top_left_shift is None and self.lens is None:
            top_left_shift = self.past
        if top_left_shift is not None:
            flags += ["--top-left", "--shift", top_left_shift]
        return flags

    def numbers(self, softcap=True):
        flags = ["--scale", self.at["scale"]] if "scale" in self.at else []
        if softcap and self.at.get("softcap", 0) > 0:
            flags += ["--softcap", self.at["softcap"]]
        return flags

    def results(self):
        """Return the outputs that the test asks for."""
        names = dict(zip(("y", "key", "value", "scores"), self.outputs))
        got = {}
        if names["y"]:
            y = self.run(self.tensors(self.v), self.numbers() + self.band())["o"]
            got[names["y"]] = y if not self.flat else np.swapaxes(y, 1, 2).reshape(y.shape[0], y.shape[2], -1)
        for name, t in ((names["key"], self.k), (names["value"], self.v)):
            if name:
                got[name] = t
        if names["scores"]:
            mode = self.at.get("qk_matmul_output_mode", 0)
            got[names["scores"]] = self.weights() if mode == 3 else self.scores(mode)
        return got

    def weights(self):
        """Return the weights: the output for values that are 1 for their own key, and else 0."""
        b, g, m, _ = self.k.shape
        one = np.broadcast_to(np.eye(m, dtype=self.k.dtype), (b, g, m, m))
        return self.run(self.tensors(one), self.numbers() + self.band())["o"]

    def scores(self, mode):
        """Return the scores: LSE of a row that has one key alone is that key's score."""
        return np.concatenate([self.score(j, mode) for j in range(self.k.shape[2])], axis=3)

    def score(self, j, mode):
        """Return the scores of key j, [batch, heads, rows, 1]."""
        columns = []
        for b in range(self.k.shape[0]):
            x = {"q": self.q[b : b + 1], "k": self.k[b : b + 1, :, j : j + 1], "v": self.v[b : b + 1, :, j : j + 1]}
            flags, diagonal = self.numbers(softcap=mode > 0), self.past
            if mode == 2 and self.mask is not None:
                mask = np.broadcast_to(self.mask, np.broadcast_shapes(self.mask.shape, (self.k.shape[0], 1, 1, 1)))
                x["mask" if self.mask.dtype == np.bool_ else "bias"] = mask[b : b + 1, ..., j : j + 1]
            if mode == 2 and self.lens is not None:
                x["kv_lens"] = np.array([j < self.lens[b]], np.int64)
                diagonal = int(self.lens[b]) - self.q.shape[2]
            if mode == 2:
                flags = flags + self.band(diagonal - j)
            columns.append(self.run(x, flags)["lse"][..., None])
        return np.concatenate(columns)


def heads_of(t, heads):
    """Return [batch, heads, rows, elements] of [batch, rows, heads * elements]."""
    return np.swapaxes(t.reshape(t.shape[0], t.shape[1], heads, -1), 1, 2)


def check(program, case):
    """Return None, or how flashrun's outputs differ from the test's."""
    node = Attention(program, case)
    got = node.results()
    for name, want in node.wanted.items():
        x = got[name]
        if x.shape != want.shape:
            return f"{name} has shape {x.shape}, not {want.shape}"
        try:
            x, rtol = x.astype(want.dtype), max(case.rtol, 2**-6 if want.dtype.name == "bfloat16" else 0)  # as in onnx's own test runner
            np.testing.assert_allclose(x.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=case.atol)
        except AssertionError as error:
            lines = [line.strip() for line in str(error).splitlines() if "Mismatched" in line or "difference" in line]
            return f"{name}: " + "; ".join(lines)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flashrun")
    parser.add_argument("--case", default="*", help="only tests whose name matches this pattern")
    args = parser.parse_args()
    passed, failed, inexpressible = 0, 0, 0
    chosen = [c for c in cases() if fnmatch.fnmatch(c.name, args.case)]
    for case in chosen:
        try:
            wrong = check(args.flashrun, case)
        except Inexpressible as reason:
            inexpressible += 1
            print(f"not expressible: {case.name}: {reason}")
            continue
        except flashrun.Refused as reason:
            wrong = str(reason)
        if wrong is None:
            passed += 1
        else:
            failed += 1
            print(f"FAIL {case.name}: {wrong}")
    print(f"{passed} of {len(chosen)} passed, {failed} failed, {inexpressible} cannot be expressed")
    sys.exit(1 if failed or not chosen else 0)


if __name__ == "__main__":
    main()
