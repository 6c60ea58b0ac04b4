"""MLX on the CPU: mx.fast.scaled_dot_product_attention with gradients. Install: mlx[cpu], numpy."""

from importlib.metadata import version

import mlx.core as mx
import numpy as np

import judge

DTYPES = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}
mx.set_default_device(mx.cpu)


@judge.runner(f"MLX {version('mlx')} fast.scaled_dot_product_attention", "gqa v_dim scale window top_left shift alibi bias mask ragged sink")
def attention(q, k, v, **case):
    if case.get("bias_dtype", case["dtype"]) != case["dtype"] or case["slopes"] is not None and case["dtype"] != "f32":
        raise judge.Unsupported("no float32 bias with 16-bit queries")
    array = lambda x: mx.array(np.ascontiguousarray(x)).astype(DTYPES[case["dtype"]])
    mask, bias = judge.visible(case), judge.added(case)
    inputs = {"dq": array(q), "dk": array(k), "dv": array(v)}
    if bias is not None and case["slopes"] is None:
        inputs["dbias"] = array(bias)
    if case["sink"] is not None:
        inputs["dsink"] = array(case["sink"])
    causal = set(case["features"]) <= {"gqa", "v_dim", "scale", "window", "sink"} and case["left"] is None and case["right"] == 0
    mask = None if mask is None else mx.array(mask)

    def forward(values):
        x = dict(zip(inputs, values))
        total = x.get("dbias", None if bias is None else array(bias))
        if total is not None and mask is not None:
            total = mx.where(mask, total, mx.array(-np.inf, total.dtype))
        given = "causal" if causal else total if total is not None else mask
        return [mx.fast.scaled_dot_product_attention(x["dq"], x["dk"], x["dv"], scale=case["scale"], mask=given, sinks=x.get("dsink"))]

    (o,), grads = mx.vjp(lambda *values: forward(values), list(inputs.values()), [array(case["do"])])
    return {name: np.array(x.astype(mx.float32)) for name, x in {"o": o, **dict(zip(inputs, grads))}.items()}
