"""PyTorch on the CPU: scaled_dot_product_attention by its math and flash backends, and FlexAttention. Install: torch, numpy."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

import judge

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
TAKES = "gqa scale window top_left shift alibi bias mask ragged"
torch.set_num_threads(1)


def sdpa(backend, bias_gradient):
    def attention(q, k, v, **case):
        if case["slopes"] is not None and case["dtype"] != "f32" or case.get("bias_dtype", case["dtype"]) != case["dtype"]:
            raise judge.Unsupported("no float32 bias with 16-bit queries")
        q, k, v, do = (torch.tensor(x).to(DTYPES[case["dtype"]]).requires_grad_() for x in (q, k, v, case["do"]))
        inputs, mask, bias = {"dq": q, "dk": k, "dv": v}, judge.visible(case), judge.added(case)
        # is_causal aligns the first row with the first key.
        causal = set(case["features"]) <= {"gqa", "v_dim", "scale", "window", "top_left"} and case["left"] is None and case["right"] == 0 and (
            case["top_left"] or case["q_len"] == case["kv_len"])
        attn_mask = None if causal or mask is None else torch.tensor(mask)
        if bias is not None:
            bias = torch.tensor(bias).to(q.dtype)
            if bias_gradient and case["slopes"] is None:
                inputs["dbias"] = bias.requires_grad_()
            attn_mask = bias if mask is None else torch.where(torch.tensor(mask), bias, -torch.inf)
        with sdpa_kernel(backend):
            o = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask, is_causal=causal, scale=case["scale"], enable_gqa=case["heads"] != case["kv_heads"])
        grads = torch.autograd.grad(o, list(inputs.values()), do, allow_unused=True, materialize_grads=True)
        return {name: x.detach().float().numpy() for name, x in {"o": o, **dict(zip(inputs, grads))}.items()}

    return attention


version = "PyTorch " + torch.__version__.split("+")[0]
judge.runner(version + " SDPA math", TAKES + " v_dim")(sdpa(SDPBackend.MATH, True))
judge.runner(version + " SDPA flash", TAKES)(sdpa(SDPBackend.FLASH_ATTENTION, False))


@judge.runner(version + " FlexAttention, eager", TAKES + " v_dim softcap dlse", "f32 bf16")
@torch.no_grad()
def flex(q, k, v, **case):
    q, k, v = (torch.tensor(x).to(DTYPES[case["dtype"]]) for x in (q, k, v))
    mask, bias = (None if x is None else torch.tensor(x) for x in (judge.visible(case), judge.added(case)))
    shape = (case["batch"], case["heads"], case["q_len"], case["kv_len"])
    bias = None if bias is None else bias.broadcast_to(shape)

    def score(s, b, h, i, j):
        s = case["softcap"] * torch.tanh(s / case["softcap"]) if case["softcap"] else s
        s = s if bias is None else s + bias[b, h, i, j]
        return s if mask is None else torch.where(mask[b, h, i, j], s, -torch.inf)

    o, lse = flex_attention(q, k, v, score_mod=score, scale=case["scale"], enable_gqa=case["heads"] != case["kv_heads"], return_lse=True)
    return {"o": o.float().numpy(), "lse": lse.float().numpy()}
