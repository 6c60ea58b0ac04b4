"""JAX on the CPU: jax.nn.dot_product_attention with gradients. Install: jax, numpy."""

import jax
import jax.numpy as jnp
import numpy as np

import judge

DTYPES = {"f32": jnp.float32, "f16": jnp.float16, "bf16": jnp.bfloat16}
jax.config.update("jax_disable_jit", True)  # shapes differ by case, so compilation would take most of the time


@judge.runner(f"JAX {jax.__version__} dot_product_attention", "gqa scale window top_left shift alibi bias mask ragged")
def attention(q, k, v, **case):
    if case.get("bias_dtype", case["dtype"]) != case["dtype"] or case["slopes"] is not None and case["dtype"] != "f32":
        raise judge.Unsupported("no float32 bias with 16-bit queries")
    swap = lambda x: jnp.swapaxes(jnp.asarray(x, DTYPES[case["dtype"]]), 1, 2)
    mask, bias = judge.visible(case), judge.added(case)
    causal = set(case["features"]) <= {"gqa", "scale", "window", "top_left"} and case["left"] is None and case["right"] == 0 and (
        case["top_left"] or case["q_len"] == case["kv_len"])
    mask = None if causal or mask is None else jnp.asarray(mask)
    inputs = {"dq": swap(q), "dk": swap(k), "dv": swap(v)}
    if bias is not None:
        inputs["dbias"] = jnp.asarray(bias, DTYPES[case["dtype"]])

    def forward(x):
        return jax.nn.dot_product_attention(x["dq"], x["dk"], x["dv"], x.get("dbias"), mask, scale=case["scale"], is_causal=causal)

    o, backward = jax.vjp(forward, inputs)
    (grads,) = backward(swap(case["do"]))
    if case["slopes"] is not None:
        grads.pop("dbias")
    out = {"o": o, **grads}
    return {name: np.asarray(x if name == "dbias" else jnp.swapaxes(x, 1, 2), np.float32) for name, x in out.items()}
