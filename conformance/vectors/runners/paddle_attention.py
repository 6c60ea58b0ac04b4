"""PaddlePaddle on the CPU: scaled_dot_product_attention with gradients. Install: paddlepaddle, numpy."""

import numpy as np
import paddle

import judge

DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
paddle.set_device("cpu")


@judge.runner(f"PaddlePaddle {paddle.__version__} scaled_dot_product_attention", "gqa v_dim scale window top_left shift alibi bias mask ragged", "f32")  # its where has no 16-bit types on the CPU
def attention(q, k, v, **case):
    if case.get("bias_dtype", case["dtype"]) != case["dtype"] or case["slopes"] is not None and case["dtype"] != "f32":
        raise judge.Unsupported("no float32 bias with 16-bit queries")
    tensor = lambda x: paddle.to_tensor(np.ascontiguousarray(x)).astype(DTYPES[case["dtype"]])
    swap = lambda x: np.swapaxes(x, 1, 2)
    mask, bias = judge.visible(case), judge.added(case)
    causal = set(case["features"]) <= {"gqa", "v_dim", "scale", "window", "top_left"} and case["left"] is None and case["right"] == 0 and (
        case["top_left"] or case["q_len"] == case["kv_len"])
    inputs = {"dq": tensor(swap(q)), "dk": tensor(swap(k)), "dv": tensor(swap(v))}
    given = None if causal or mask is None else paddle.to_tensor(np.ascontiguousarray(mask))
    if bias is not None:
        bias = tensor(bias)
        if case["slopes"] is None:
            inputs["dbias"] = bias
    for x in inputs.values():
        x.stop_gradient = False
    if bias is not None:
        given = bias if given is None else paddle.where(given, bias, paddle.full_like(bias, -np.inf))
    o = paddle.nn.functional.scaled_dot_product_attention(
        inputs["dq"], inputs["dk"], inputs["dv"], given, is_causal=causal, scale=case["scale"], enable_gqa=case["heads"] != case["kv_heads"])
    grads = paddle.grad([o], list(inputs.values()), [tensor(swap(case["do"]))], allow_unused=True)
    out = {name: x for name, x in {"o": o, **dict(zip(inputs, grads))}.items() if x is not None}
    return {name: x if name == "dbias" else swap(x) for name, x in ((name, x.astype("float32").numpy()) for name, x in out.items())}
