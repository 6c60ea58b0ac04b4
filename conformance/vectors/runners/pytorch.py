"""PyTorch on the GPU, or on the CPU without one: scaled_dot_product_attention by backend, and FlexAttention. Install: torch, numpy."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import judge

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
TAKES = "gqa scale window top_left shift alibi bias mask ragged"
GPU = torch.cuda.is_available()
torch.set_default_device("cuda" if GPU else "cpu")
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
        try:
            with sdpa_kernel(backend):
                o = torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, attn_mask, is_causal=causal, scale=case["scale"], enable_gqa=case["heads"] != case["kv_heads"])
        except RuntimeError as error:
            if "No available kernel" not in str(error):
                raise
            raise judge.Unsupported("PyTorch: No available kernel") from error
        grads = torch.autograd.grad(o, list(inputs.values()), do, allow_unused=True, materialize_grads=True)
        return {name: x.detach().float().cpu().numpy() for name, x in {"o": o, **dict(zip(inputs, grads))}.items()}

    return attention


version = "PyTorch " + torch.__version__.split("+")[0]
where = " on the GPU" if GPU else ""
judge.runner(version + " SDPA math" + where, TAKES + " v_dim")(sdpa(SDPBackend.MATH, True))
judge.runner(version + " SDPA flash" + where, TAKES, "f16 bf16" if GPU else "f32 f16 bf16")(sdpa(SDPBackend.FLASH_ATTENTION, False))
if GPU:
    judge.runner(version + " SDPA efficient" + where, TAKES + " v_dim")(sdpa(SDPBackend.EFFICIENT_ATTENTION, True))
    judge.runner(version + " SDPA cuDNN" + where, TAKES + " v_dim", "f16 bf16")(sdpa(SDPBackend.CUDNN_ATTENTION, False))
