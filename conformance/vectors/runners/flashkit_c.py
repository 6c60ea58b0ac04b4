"""flashkit's C library through its package for Python, both passes. Install: make capi, and capi/python/src on PYTHONPATH."""

import flashkit
import ml_dtypes
import numpy as np

import judge

DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
FEATURES = "gqa v_dim scale dlse window top_left shift softcap alibi bias mask sink dropout origin ragged page carry mixed"


@judge.runner(f"flashkit {flashkit.__version__} C library", FEATURES)
def attention(q, k, v, **case):
    store = lambda x, of="dtype": None if x is None else x.astype(DTYPES[case[of]])
    q, k, v, do = store(q), store(k, "kv_dtype"), store(v, "kv_dtype"), store(case["do"])
    options = {name: case[name] for name in ("top_left", "shift", "mask", "slopes", "sink", "dropout", "q_lens", "kv_lens")}
    options |= {"window": (case["left"], case["right"]), "scale": case["scale"], "softcap": case["softcap"] or None, "seed": int(case.get("seed", 0))}
    options |= {"origin": tuple(case["origin"]) if "origin" in case else None, "bias": store(case["bias"], "bias_dtype")}
    if "ragged" in case["features"] and case["q_lens"] is None and case["kv_lens"] is None:
        options["kv_lens"] = np.full(case["batch"], case["kv_len"], np.int32)
    earlier = {}
    if case["earlier"] is not None:
        earlier = {"carry": True, "out": store(case["earlier"]), "lse": np.array(case["earlier_lse"])}
    o, lse = flashkit.attention(q, k, v, return_lse=True, **options, **earlier)
    out = {"o": o, "lse": lse}
    if do is not None:
        grads = flashkit.attention_backward(do, q, k, v, o, lse, d_lse=case["dlse"], d_bias=case["bias"] is not None, d_sink=case["sink"] is not None, **options)
        out |= {name.lower().replace("_", ""): x for name, x in grads._asdict().items() if x is not None}
    return {name: np.asarray(x, np.float32) for name, x in out.items() if name in case["outputs"]}
