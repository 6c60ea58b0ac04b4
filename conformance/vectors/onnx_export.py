#!/usr/bin/env python3
"""Export the cases that ONNX can express as models with test data, and check the exports.

    python onnx_export.py FOLDER [--case PATTERN] [--sample N]

A case becomes FOLDER/test_NAME with model.onnx, test_data_set_0 and data.json (tolerances), the layout of ONNX's
backend tests. A model is one node Attention, after Cast nodes for K and V of another type, and Concat nodes for
a sink. FOLDER/index.json lists the exports, the cases that ONNX cannot express with the reason, and the cases in
which ONNX's reference evaluator exceeds the bound. The exit status is 1 if a model is wrong: then its outputs
differ even in float64. Install: numpy, onnx, ml-dtypes.
"""

import json

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import exporting
import judge

TYPES = {
    "f64": (TensorProto.DOUBLE, np.float64),
    "f32": (TensorProto.FLOAT, np.float32),
    "f16": (TensorProto.FLOAT16, np.float16),
    "bf16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
}
FEATURES = "gqa v_dim scale window top_left shift softcap alibi bias mask sink ragged page mixed dlse".split()
LACKS = {"dropout": "drops no weights", "origin": "drops no weights", "carry": "has no O and LSE of earlier keys among its inputs"}


def express(case):
    """Return the inputs of the model by name, with its attributes. Raise judge.Unsupported with the field that ONNX lacks."""
    task = exporting.members(case)
    for feature in task["features"]:
        if feature not in FEATURES:
            raise judge.Unsupported(f"features: {feature}: Attention {LACKS.get(feature, 'may lack it; onnx_export.py does not know it')}")
    if task["kv_len"] == 0:
        raise judge.Unsupported("kv_len: 0; the reference evaluator fails without keys, so it cannot confirm the model")
    shown, added = judge.visible(task), judge.added(task)
    finite(task, shown)
    attributes = {} if task["dtype"] == "f32" else {"softmax_precision": TensorProto.FLOAT}
    if task["softcap"]:
        attributes["softcap"] = task["softcap"]
    if "scale" in task["features"]:
        attributes["scale"] = task["scale"]
    x = {name: task[name] for name in "qkv"}
    features = set(task["features"])
    if causal(task) and (added is None or np.isfinite(added).all()):
        attributes["is_causal"], shown = 1, task["mask"]
    elif task["kv_lens"] is not None and not features & {"window", "sink"}:
        x["nonpad_kv_seqlen"], shown = task["kv_lens"].astype(np.int64), judge.visible({**task, "kv_lens": None})
    if added is not None or "sink" in features:
        added = np.zeros((1, 1, 1, task["kv_len"]), np.float32) if added is None else added
        x["attn_mask"] = exact(added if shown is None else np.where(shown, added, -np.inf), task, "bias" if task["slopes"] is None else "slopes")
    elif shown is not None:
        x["attn_mask"] = shared(shown)
    if "sink" in features:
        x["sink"] = exact(task["sink"], task, "sink").reshape(1, -1, 1, 1)
        x["attn_mask"] = np.broadcast_to(x["attn_mask"], np.broadcast_shapes(x["attn_mask"].shape, (1, task["heads"], task["q_len"], 1)))
    return x, attributes


def causal(task):
    """Tell whether the band is the one of is_causal without a cache: the first row sees the first key alone."""
    features = set(task["features"])
    return "window" in features and not features & {"ragged", "sink", "shift"} and task["left"] is None and task["right"] == 0 and (
        task["top_left"] or task["q_len"] == task["kv_len"])


def finite(task, shown):
    """Refuse NaN and infinity that a mask hides: Attention is defined to multiply V by weights of 0. A row that sees no key is 0."""
    if shown is None:
        return
    keys = np.repeat(~(np.isfinite(task["k"]).all(-1) & np.isfinite(task["v"]).all(-1)), task["heads"] // task["kv_heads"], 1)
    rows = np.isinf(task["q"]).any(-1) & ~np.isnan(task["q"]).any(-1)  # a row with NaN is NaN, whatever the mask hides
    hidden = ~shown & shown.any(-1, keepdims=True)
    for name, at in (("k or v", keys[:, :, None, :]), ("q", rows[..., None])):
        if (hidden & at).any():
            raise judge.Unsupported(f"inputs: {name} has NaN or infinity where a mask hides it; Attention multiplies it by a weight of 0")


def exact(x, task, name):
    """Return x, which the model stores in Q's type."""
    with np.errstate(over="ignore"):
        stored = x.astype(TYPES[task["dtype"]][1]).astype(np.float32)
    if not np.array_equal(stored, x, equal_nan=True):
        raise judge.Unsupported(f"inputs: {name} is not exact in {task['dtype']}; a float attn_mask has the type of Q")
    return x


def shared(mask):
    """Return the mask with one sequence or head where all are equal."""
    for axis in (0, 1):
        if mask.shape[axis] > 1 and (mask == mask.take([0], axis)).all():
            mask = mask.take([0], axis)
    return mask


def build(case, dtype):
    """Return the model with Q and O in dtype, and its inputs by name as arrays of their types."""
    x, attributes = express(case)
    kind, number = TYPES[dtype]
    stored = TYPES[case.task["kv_dtype"]] if "mixed" in case.task["features"] else (kind, number)
    kinds = {name: (stored if name in "kv" else (kind, number)) for name in x}
    kinds |= {name: (TensorProto.BOOL, bool) for name in x if x[name].dtype == bool} | {"nonpad_kv_seqlen": (TensorProto.INT64, np.int64)}
    feeds = {name: y.astype(kinds[name][1]) for name, y in x.items()}
    nodes, constants, names = [], [], {name: name for name in feeds}
    if "mixed" in case.task["features"]:
        for name in "kv":
            nodes.append(helper.make_node("Cast", [name], [name + "_cast"], to=kind))
            names[name] += "_cast"
    if "sink" in feeds:  # one more key without a value, with the sink as its score
        b, h, n, _ = feeds["attn_mask"].shape
        for name, shape in (("k", feeds["k"].shape), ("v", feeds["v"].shape)):
            constants.append(numpy_helper.from_array(np.zeros((*shape[:2], 1, shape[3]), number), name + "_zero"))
            nodes.append(helper.make_node("Concat", [names[name], name + "_zero"], [name + "_sink"], axis=2))
        constants.append(numpy_helper.from_array(np.array((b, h, n, 1), np.int64), "sink_shape"))
        nodes.append(helper.make_node("Expand", ["sink", "sink_shape"], ["sink_rows"]))
        nodes.append(helper.make_node("Concat", ["attn_mask", "sink_rows"], ["mask_sink"], axis=3))
        names |= {"k": "k_sink", "v": "v_sink", "attn_mask": "mask_sink"}
    given = [names.get(name, "") for name in ("q", "k", "v", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")]
    while not given[-1]:
        given.pop()
    nodes.append(helper.make_node("Attention", given, ["o"], **attributes))
    infos = [helper.make_tensor_value_info(name, kinds[name][0], y.shape) for name, y in feeds.items()]
    o = helper.make_tensor_value_info("o", kind, case.want["o"].shape)
    graph = helper.make_graph(nodes, case.name, infos, [o], constants, doc_string=case.catches)
    opset = helper.make_opsetid("", 24 if "nonpad_kv_seqlen" in feeds else 23)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=helper.find_min_ir_version_for([opset]), producer_name="flashkit")
    return model, feeds


def write(case, folder):
    """Write the case's model, inputs, output and tolerances. Return the model."""
    model, feeds = build(case, case.dtype)
    data = folder / "test_data_set_0"
    data.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString(deterministic=True))
    for i, (name, x) in enumerate(feeds.items()):
        (data / f"input_{i}.pb").write_bytes(numpy_helper.from_array(x, name).SerializeToString(deterministic=True))
    o = numpy_helper.from_array(case.want["o"].astype(TYPES[case.dtype][1]), "o")
    (data / "output_0.pb").write_bytes(o.SerializeToString(deterministic=True))
    (folder / "data.json").write_text(json.dumps({"rtol": 0, "atol": case.bounds["o"]}) + "\n")
    return model


def fault(case, o):
    """Return the difference of o from the case as one line, or None."""
    _, faults = judge.judge(case, {"o": np.asarray(o).astype(np.float32 if o.dtype != np.float64 else o.dtype)})
    return judge.line(faults[0]) if faults else None


def evaluate(case, model, feeds):
    """Return how the reference evaluator differs from the case, or None."""
    try:
        return fault(case, ReferenceEvaluator(model).run(None, feeds)[0])
    except Exception as error:  # of the evaluator, for tensors without elements
        return f"{type(error).__name__}: {error}"


def check(case, folder):
    """Check the written files. Return how the reference evaluator differs from the case, or None. Raise ValueError if the model is wrong."""
    model = onnx.load(folder / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    read = lambda name: onnx.load_tensor(folder / "test_data_set_0" / name)
    feeds = {x.name: numpy_helper.to_array(read(f"input_{i}.pb")) for i, x in enumerate(model.graph.input)}
    if wrong := fault(case, numpy_helper.to_array(read("output_0.pb"))):
        raise ValueError("output_0.pb: " + wrong)
    if not (difference := evaluate(case, model, feeds)):
        return None
    wide = evaluate(case, *build(case, "f64"))
    if wide:
        raise ValueError(f"model.onnx in float64: {wide}")
    return difference


def export(chosen, folder):
    """Export the cases into the folder and check them. Return the index, and a list of wrong exports."""
    index, wrong = {"opsets": {}, "left_out": {}, "unsupported": {}, "reference_differs": {}}, []
    for case in chosen:
        case.load()
        place = folder / ("test_" + case.name.replace("-", "_").replace(".", "_"))
        try:
            index["opsets"][case.name] = write(case, place).opset_import[0].version
            index["left_out"][case.name] = [name for name in case.want if name != "o"]
            if difference := check(case, place):
                index["reference_differs"][case.name] = difference
        except judge.Unsupported as reason:
            index["unsupported"][case.name] = str(reason)
        except (ValueError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            wrong.append(f"{case.name}: {error}")
        case.inputs = case.want = None
    return index, wrong


def main():
    with exporting.folder(__doc__) as (chosen, folder):
        index, wrong = export(chosen, folder)
        exporting.finish(folder, index, wrong, f"{len(index['opsets'])} models, {len(index['unsupported'])} unsupported, {len(wrong)} wrong; the "
                         f"reference evaluator of ONNX {onnx.__version__} differs in {len(index['reference_differs'])}")


if __name__ == "__main__":
    main()
