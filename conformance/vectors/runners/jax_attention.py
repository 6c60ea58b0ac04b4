"""JAX on the GPU, or on the CPU without one: jax.nn.dot_product_attention by XLA, with gradients. Install: jax, numpy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import judge

DTYPES = {"f32": jnp.float32, "f16": jnp.float16, "bf16": jnp.bfloat16}
GPU = jax.default_backend() == "gpu"
jax.config.update("jax_default_matmul_precision", "highest")  # otherwise the GPU rounds float32 to TF32


@functools.partial(jax.jit, static_argnames=("scale", "is_causal"))
def both(inputs, mask, do, **options):
    """Return O and the gradients of the inputs. One compilation of both passes is faster than one of each operation."""
    forward = lambda x: jax.nn.dot_product_attention(x["dq"], x["dk"], x["dv"], x.get("dbias"), mask, implementation="xla", **options)
    o, backward = jax.vjp(forward, inputs)
    return o, backward(do)[0]


# In a compiled function, float16 raises an error on the CPU.
@judge.runner(f"JAX {jax.__version__} dot_product_attention, XLA{' on the GPU' * GPU}", "gqa scale window top_left shift alibi bias mask ragged",
              "f32 f16 bf16" if GPU else "f32 bf16")
def attention(q, k, v, **case):
    if case.get("bias_dtype", case["dtype"]) != case["dtype"] or case["slopes"] is not None and case["dtype"] != "f32":
        raise judge.Unsupported("no float32 bias with 16-bit queries")
    swap = lambda x: jnp.asarray(np.swapaxes(x, 1, 2), DTYPES[case["dtype"]])
    mask, bias = judge.visible(case), judge.added(case)
    causal = set(case["features"]) <= {"gqa", "scale", "window", "top_left"} and case["left"] is None and case["right"] == 0 and (
        case["top_left"] or case["q_len"] == case["kv_len"])
    inputs = {"dq": swap(q), "dk": swap(k), "dv": swap(v)}
    if bias is not None:
        inputs["dbias"] = jnp.asarray(bias, DTYPES[case["dtype"]])
    o, grads = both(inputs, None if causal or mask is None else mask, swap(case["do"]), scale=case["scale"], is_causal=causal)
    if case["slopes"] is not None:
        grads.pop("dbias")
    return {name: np.asarray(x if name == "dbias" else np.swapaxes(x, 1, 2), np.float32) for name, x in {"o": o, **grads}.items()}
