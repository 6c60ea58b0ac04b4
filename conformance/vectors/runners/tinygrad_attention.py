"""tinygrad: Tensor.scaled_dot_product_attention with gradients, on its default device. Install: tinygrad, numpy."""

from importlib.metadata import version

import numpy as np
from tinygrad import Device, Tensor, dtypes

import judge

DTYPES = {"f32": dtypes.float32, "f16": dtypes.float16, "bf16": dtypes.bfloat16}


@judge.runner(f"tinygrad {version('tinygrad')} scaled_dot_product_attention, {Device.DEFAULT}", "gqa v_dim window top_left shift alibi bias mask ragged")
def attention(q, k, v, **case):
    if case["slopes"] is not None and case["dtype"] != "f32" or case.get("bias_dtype", case["dtype"]) != case["dtype"]:
        raise judge.Unsupported("no float32 bias with 16-bit queries")
    tensor = lambda x: Tensor(np.array(x)).cast(DTYPES[case["dtype"]]).realize()
    inputs = {"dq": tensor(q), "dk": tensor(k), "dv": tensor(v)}
    mask, bias = judge.visible(case), judge.added(case)
    causal = set(case["features"]) <= {"gqa", "v_dim", "window", "top_left"} and case["left"] is None and case["right"] == 0 and (
        case["top_left"] or case["q_len"] == case["kv_len"])
    given = None if causal or mask is None else Tensor(np.array(mask))
    if bias is not None:
        bias = tensor(bias)
        if case["slopes"] is None:
            inputs["dbias"] = bias
        given = bias if given is None else given.where(bias, -np.inf)
    o = inputs["dq"].scaled_dot_product_attention(inputs["dk"], inputs["dv"], given, is_causal=causal, enable_gqa=case["heads"] != case["kv_heads"])
    grads = (o * tensor(case["do"])).sum().gradient(*inputs.values())
    return {name: x.cast(dtypes.float32).numpy() for name, x in {"o": o, **dict(zip(inputs, grads))}.items()}
