#!/usr/bin/env python3
"""Check both exports on random cases, and that each check finds a planted mistake.

    python exports_test.py [CASES]
"""

import contextlib
import pathlib
import sys
import tempfile
import unittest.mock

import numpy as np

import exporting
import flashinfer_export
import judge
import onnx_export


def export(module, chosen):
    """Return the index of an export of the cases, and its wrong exports."""
    with tempfile.TemporaryDirectory() as folder:
        return module.export(chosen, pathlib.Path(folder))


def expect(name, found):
    print(("ok   " if found else "FAIL ") + name)
    return bool(found)


def planted(module, name, old, new):
    """Tell whether the export finds a mistake in a case: a text of the module that is replaced."""
    (case,) = judge.cases(name)
    patches = contextlib.ExitStack()
    if module is flashinfer_export:
        patches.enter_context(unittest.mock.patch.object(module, old, getattr(module, old).replace(*new)))
    else:
        express = module.express

        def wrong(case):
            x, attributes = express(case)
            return (x, attributes | new) if old is None else ({**x, old: new(x[old])}, attributes)

        patches.enter_context(unittest.mock.patch.object(module, "express", wrong))
    with patches:
        return export(module, [case])[1]


def refuses(module):
    """Tell whether an export refuses a feature that it does not know."""
    (case,) = judge.cases("causal_short")
    case.task["features"] = ["window", "rotary"]
    return "rotary" in export(module, [case])[0]["unsupported"].get("causal_short", "")


def main():
    count, good = int(sys.argv[1]) if sys.argv[1:] else 60, []
    chosen = exporting.sample(judge.cases(), count)
    for module in (onnx_export, flashinfer_export):
        index, wrong = export(module, chosen)
        done = index.get("opsets") or index.get("definitions")
        good.append(expect(f"{module.__name__}: {len(done)} of {count} cases" + "".join("\n" + x for x in wrong), done and not wrong))
        good.append(expect(f"{module.__name__} refuses a feature that it does not know", refuses(module)))
    for name, old, new in (("scale_given", None, {"scale": 0.5}), ("causal_tall", "attn_mask", lambda x: ~x), ("gqa_1", "v", lambda x: -x),
                           ("one_key_more", "nonpad_kv_seqlen", lambda x: x + 1), ("sink_twice", "sink", lambda x: x + 1), ("kv_f16", "k", lambda x: 2 * x)):
        good.append(expect(f"onnx_export finds a mistake in {name}", planted(onnx_export, name, old, new)))
    for name, old, new in (("gqa_1", "RAGGED", ("LAST", "k1 - 1")), ("gqa_2", "RAGGED", ("* sm_scale", "")), ("page_tail", "PAGED", ("[:keys]", "[:keys - 1]")),
                           ("page_3", "PAGED", ("math.log(2)", "1")), ("page_order", "MLA", ("q_pe[s]", "q_pe[0]"))):
        good.append(expect(f"flashinfer_export finds a mistake in {name}", planted(flashinfer_export, name, old, new)))
    sys.exit(not all(good))


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        main()
