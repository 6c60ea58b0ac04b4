"""OpenVINO on the CPU: ScaledDotProductAttention in float32 and float16. Install: openvino, numpy."""

import numpy as np
import openvino
from openvino import opset13

import judge

TYPES = {"f32": np.float32, "f16": np.float16}
VERSION = openvino.get_version().split("-")[0]
CORE = openvino.Core()


@judge.runner(f"OpenVINO {VERSION} ScaledDotProductAttention", "gqa v_dim scale window top_left shift alibi bias mask ragged", "f32 f16")
def attention(q, k, v, **case):
    if case.get("bias_dtype", case["dtype"]) != case["dtype"] or case["slopes"] is not None and case["dtype"] != "f32":
        raise judge.Unsupported("no float32 bias with 16-bit queries")
    dtype, shown, bias = TYPES[case["dtype"]], judge.visible(case), judge.added(case)
    k, v = (np.repeat(x, case["heads"] // case["kv_heads"], axis=1) for x in (k, v))  # the operator has no groups of heads
    causal = set(case["features"]) <= {"gqa", "v_dim", "scale", "window", "top_left"} and case["left"] is None and case["right"] == 0 and (
        case["top_left"] or case["q_len"] == case["kv_len"])
    feeds = [x.astype(dtype) for x in (q, k, v)]
    if bias is not None:
        bias = bias if shown is None else np.where(shown, bias, -np.inf)
        feeds.append(np.ascontiguousarray(np.broadcast_to(bias, (case["batch"], case["heads"], case["q_len"], case["kv_len"])).astype(dtype)))
    elif shown is not None and not causal:
        feeds.append(np.ascontiguousarray(shown))
    x = [opset13.parameter(list(f.shape), bool if f.dtype == bool else dtype) for f in feeds]
    mask = x[3] if len(x) > 3 else opset13.constant(np.zeros((), dtype))
    node = opset13.scaled_dot_product_attention(*x[:3], mask, opset13.constant(np.array(case["scale"], dtype)), causal=causal)
    hints = {"INFERENCE_PRECISION_HINT": case["dtype"], "INFERENCE_NUM_THREADS": 1}
    compiled = CORE.compile_model(openvino.Model([node], x), "CPU", hints)
    return {"o": next(iter(compiled(feeds).values())).astype(np.float32)}
