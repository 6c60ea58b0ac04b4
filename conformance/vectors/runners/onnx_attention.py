"""The operator Attention of ONNX: its reference evaluator and ONNX Runtime on the CPU. Install: onnx, onnxruntime, numpy."""

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import judge

TYPES = {"f32": (TensorProto.FLOAT, np.float32), "f16": (TensorProto.FLOAT16, np.float16), "bf16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16)}
OPSET = 24
FEATURES = "gqa v_dim scale window top_left shift softcap alibi bias mask ragged"
onnxruntime.set_default_logger_severity(4)


def model(case, x):
    """Return a model of one node, and a dict of its inputs."""
    kind, dtype = TYPES[case["dtype"]]
    mask, bias = judge.visible(case), judge.added(case)
    causal = set(case["features"]) <= {"gqa", "v_dim", "scale", "softcap", "window", "top_left"} and case["left"] is None and case["right"] == 0 and (
        case["top_left"] or case["q_len"] == case["kv_len"])  # is_causal aligns the first row with the first key
    feeds = {name: y.astype(dtype) for name, y in x.items()}
    if bias is not None:
        feeds["mask"] = np.broadcast_to(bias if mask is None else np.where(mask, bias, -np.inf), np.shape(bias if mask is None else mask)).astype(dtype)
    elif mask is not None and not causal:
        feeds["mask"] = mask
    node = helper.make_node("Attention", list(feeds), ["o"], scale=case["scale"], is_causal=int(causal), softcap=float(case["softcap"]))
    inputs = [helper.make_tensor_value_info(name, TensorProto.BOOL if y.dtype == bool else kind, y.shape) for name, y in feeds.items()]
    shape = (*feeds["q"].shape[:3], feeds["v"].shape[3])
    graph = helper.make_graph([node], "attention", inputs, [helper.make_tensor_value_info("o", kind, shape)])
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=11)
    onnx.checker.check_model(built)
    return built, feeds


def limited(case):
    if case.get("bias_dtype", case["dtype"]) != case["dtype"] or case["slopes"] is not None and case["dtype"] != "f32":
        raise judge.Unsupported("no float32 bias with 16-bit queries")


@judge.runner(f"ONNX {onnx.__version__} reference Attention-{OPSET}", FEATURES)
def reference(q, k, v, **case):
    limited(case)
    built, feeds = model(case, {"q": q, "k": k, "v": v})
    return {"o": np.asarray(ReferenceEvaluator(built).run(None, feeds)[0]).astype(np.float32)}


@judge.runner(f"ONNX Runtime {onnxruntime.__version__} Attention-{OPSET}", FEATURES, "f32 f16")
def runtime(q, k, v, **case):
    limited(case)
    built, feeds = model(case, {"q": q, "k": k, "v": v})
    session = onnxruntime.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"])
    return {"o": session.run(None, feeds)[0].astype(np.float32)}
