"""ONNX Runtime's own operators on the CPU: MultiHeadAttention and GroupQueryAttention. Install: onnx, onnxruntime, numpy."""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

import judge

TYPES = {"f32": (TensorProto.FLOAT, np.float32), "f16": (TensorProto.FLOAT16, np.float16)}
KINDS = {np.dtype(bool): TensorProto.BOOL, np.dtype(np.int32): TensorProto.INT32}
onnxruntime.set_default_logger_severity(4)


def run(operator, case, inputs, outputs, **attributes):
    """Run a model of one node. Inputs of None are absent. Return O as [B, H, N, DV]."""
    kind, _ = TYPES[case["dtype"]]
    feeds = {f"x{i}": x for i, x in enumerate(inputs) if x is not None}
    node = helper.make_node(operator, [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)], outputs, domain="com.microsoft",
                            num_heads=case["heads"], scale=case["scale"], **attributes)
    infos = [helper.make_tensor_value_info(name, KINDS.get(x.dtype, kind), x.shape) for name, x in feeds.items()]
    graph = helper.make_graph([node], "attention", infos, [helper.make_tensor_value_info(name, kind, None) for name in outputs])
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)], ir_version=8)
    session = onnxruntime.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"])
    o = session.run(["o"], feeds)[0].astype(np.float32)
    return {"o": o.reshape(o.shape[0], o.shape[1], case["heads"], -1).swapaxes(1, 2)}


def flat(case, x):
    """[B, H, N, D] as [B, N, H * D] in the case's type."""
    return np.ascontiguousarray(x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1).astype(TYPES[case["dtype"]][1]))


@judge.runner(f"ONNX Runtime {onnxruntime.__version__} MultiHeadAttention", "gqa v_dim scale window top_left shift alibi bias mask ragged", "f32")
def multi_head(q, k, v, **case):
    k, v = (np.repeat(x, case["heads"] // case["kv_heads"], axis=1) for x in (k, v))  # the operator has no groups of heads
    bias, shown = judge.added(case), judge.visible(case)
    causal = set(case["features"]) <= {"gqa", "v_dim", "scale", "window", "top_left"} and case["left"] is None and case["right"] == 0 and case["q_len"] == case["kv_len"]
    if shown is not None and not causal:  # the operator has no boolean mask of rows and keys, so -Inf hides a pair
        bias = np.where(shown, 0 if bias is None else bias, -np.inf).astype(np.float32)
    if bias is not None:
        bias = np.ascontiguousarray(np.broadcast_to(bias, (case["batch"], case["heads"], case["q_len"], case["kv_len"])))
    return run("MultiHeadAttention", case, [*(flat(case, x) for x in (q, k, v)), None, None, bias], ["o"], unidirectional=int(causal))


@judge.runner(f"ONNX Runtime {onnxruntime.__version__} GroupQueryAttention", "gqa scale window softcap sink", "f32 f16")
def group_query(q, k, v, **case):
    if case["right"] != 0 or case["q_len"] > case["kv_len"] or case["q_len"] == 0:
        raise judge.Unsupported("causal alone, with at least as many keys as rows")
    past = case["kv_len"] - case["q_len"]
    if case["batch"] > 1 and past > 0 and case["q_len"] > 1:
        raise judge.Unsupported("several rows after earlier keys in batches of 1 alone")
    old = [np.ascontiguousarray(x[:, :, :past].astype(TYPES[case["dtype"]][1])) for x in (k, v)]
    lens = np.full(case["batch"], case["kv_len"] - 1, np.int32)
    sink = None if case["sink"] is None else case["sink"].astype(TYPES[case["dtype"]][1])
    inputs = [flat(case, q), *(flat(case, x[:, :, past:]) for x in (k, v)), *old, lens, np.array([case["kv_len"]], np.int32), None, None, None, None, sink]
    window = -1 if case["left"] is None else case["left"] + 1  # the operator counts the row's own key
    return run("GroupQueryAttention", case, inputs[: 12 if sink is not None else 7], ["o", "present_key", "present_value"],
               kv_num_heads=case["kv_heads"], local_window_size=window, softcap=float(case["softcap"]))
