"""Hugging Face transformers: the eager attention of its models, in PyTorch. Install: torch, transformers, numpy."""

from types import SimpleNamespace

import torch
import transformers
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as with_softcap
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as with_sinks

import judge

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
torch.set_num_threads(1)


@judge.runner(f"transformers {transformers.__version__} eager", "gqa v_dim scale window top_left shift softcap alibi bias mask ragged sink")
def attention(q, k, v, **case):
    if case["slopes"] is not None and case["dtype"] != "f32" or case.get("bias_dtype", case["dtype"]) != case["dtype"]:
        raise judge.Unsupported("no float32 bias with 16-bit queries")
    if case["softcap"] and case["sink"] is not None:
        raise judge.Unsupported("no model has softcap and sinks")
    tensor = lambda x: torch.tensor(x).to(DTYPES[case["dtype"]]).requires_grad_()
    inputs = {"dq": tensor(q), "dk": tensor(k), "dv": tensor(v)}
    mask, bias = judge.visible(case), judge.added(case)
    added = None if mask is None else torch.where(torch.tensor(mask), 0.0, torch.finfo(DTYPES[case["dtype"]]).min).to(DTYPES[case["dtype"]])
    if bias is not None:
        bias = tensor(bias)
        if case["slopes"] is None:
            inputs["dbias"] = bias
        added = bias if added is None else bias + added
    module = SimpleNamespace(num_key_value_groups=case["heads"] // case["kv_heads"], training=False, head_dim=case["dim"])
    options = {"softcap": case["softcap"] or None}
    if case["sink"] is not None:
        module.sinks, options = tensor(case["sink"]), {}
        inputs["dsink"] = module.sinks
    forward = with_softcap if case["sink"] is None else with_sinks
    o = forward(module, *list(inputs.values())[:3], added, scaling=case["scale"], dropout=0.0, **options)[0].transpose(1, 2)
    grads = torch.autograd.grad(o, list(inputs.values()), torch.tensor(case["do"]).to(o.dtype), allow_unused=True, materialize_grads=True)
    return {name: x.detach().float().numpy() for name, x in {"o": o, **dict(zip(inputs, grads))}.items()}
