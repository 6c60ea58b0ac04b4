"""Keras over TensorFlow on the CPU: keras.ops.dot_product_attention with gradients. Install: tensorflow-cpu, numpy."""

import os

os.environ |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
import keras
import numpy as np
import tensorflow as tf

import judge

DTYPES = {"f32": tf.float32, "f16": tf.float16, "bf16": tf.bfloat16}


@judge.runner(f"Keras {keras.__version__} dot_product_attention, TensorFlow {tf.__version__}", "gqa v_dim scale window top_left shift alibi bias mask ragged")
def attention(q, k, v, **case):
    if case.get("bias_dtype", case["dtype"]) != case["dtype"] or case["slopes"] is not None and case["dtype"] != "f32":
        raise judge.Unsupported("no float32 bias with 16-bit queries")
    tensor = lambda x: tf.cast(tf.constant(x), DTYPES[case["dtype"]])
    swap = lambda x: np.swapaxes(x, 1, 2)
    mask, bias = judge.visible(case), judge.added(case)
    causal = set(case["features"]) <= {"gqa", "v_dim", "scale", "window", "top_left"} and case["left"] is None and case["right"] == 0 and (
        case["top_left"] or case["q_len"] == case["kv_len"])
    # One KV head for several query heads raises an error over TensorFlow.
    whole = lambda x: tf.repeat(x, case["heads"], axis=2) if case["kv_heads"] == 1 else x
    inputs = {"dq": tensor(swap(q)), "dk": tensor(swap(k)), "dv": tensor(swap(v))}
    if bias is not None:
        bias = tensor(bias)
        if case["slopes"] is None:
            inputs["dbias"] = bias
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        o = keras.ops.dot_product_attention(
            inputs["dq"], whole(inputs["dk"]), whole(inputs["dv"]), bias=bias, mask=None if causal or mask is None else tf.constant(mask), scale=case["scale"],
            is_causal=causal)
    grads = tape.gradient(o, inputs, tensor(swap(case["do"])), unconnected_gradients="zero")
    return {name: (x if name == "dbias" else swap(x)) for name, x in ((name, tf.cast(x, tf.float32).numpy()) for name, x in {"o": o, **grads}.items())}
