"""Plain attention in NumPy float64, both passes: the example of README.md. Install: numpy."""

import numpy as np

import judge


@judge.runner("NumPy " + np.__version__, takes="gqa v_dim scale window top_left shift softcap alibi bias mask ranges sink ragged page mixed dlse")
def attention(q, k, v, **case):
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = case["heads"] // case["kv_heads"]
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    hidden = np.zeros(q.shape[:3] + (1,), bool) if judge.visible(case) is None else ~judge.visible(case)
    unseen = np.broadcast_to(hidden.all(axis=2), k.shape[:3])[..., None]
    k, v = np.where(unseen, 0, k), np.where(unseen, 0, v)

    s = case["scale"] * np.einsum("bhid,bhjd->bhij", q, k)
    slope, bias = 1.0, judge.added(case)
    if case["softcap"]:
        t = np.tanh(s / case["softcap"])
        s, slope = case["softcap"] * t, 1 - t * t
    s = np.where(hidden, -np.inf, s if bias is None else s + bias)
    sink = np.full(q.shape[1], -np.inf) if case["sink"] is None else case["sink"].astype(np.float64)
    sink = np.broadcast_to(sink[:, None, None], q.shape[:3] + (1,))
    if case["q_lens"] is not None:
        sink = np.where(np.arange(q.shape[2])[:, None] >= case["q_lens"][:, None, None, None], -np.inf, sink)
    top = np.concatenate([s, sink], axis=3).max(axis=3, keepdims=True)
    safe = np.where(top == -np.inf, 0, top)
    weights, of_sink = np.exp(s - safe), np.exp(sink - safe)
    total = weights.sum(axis=3, keepdims=True) + of_sink
    p, of_sink = (x / np.where(total == 0, 1, total) for x in (weights, of_sink))
    out = {"o": p @ v, "lse": (np.log(total) + safe)[..., 0]}
    if case["do"] is None:
        return out

    p = np.where(hidden, 0, p)  # NaN of a row does not reach the keys that it does not see
    do = np.where(hidden.all(axis=3, keepdims=True), 0, case["do"].astype(np.float64))
    dlse = 0 if case["dlse"] is None else case["dlse"][..., None]
    dp = do @ v.swapaxes(2, 3)
    delta = (p * np.where(p == 0, 0, dp)).sum(axis=3, keepdims=True) - dlse
    ds = np.where(p == 0, 0, p * (dp - delta))
    summed = lambda x: x.reshape(x.shape[0], case["kv_heads"], group, *x.shape[2:]).sum(axis=2)
    if case["bias"] is not None:
        over = tuple(d for d in range(3) if case["bias"].shape[d] == 1)
        out["dbias"] = ds.sum(axis=over, keepdims=True)
    if case["sink"] is not None:
        out["dsink"] = -(of_sink * delta).sum(axis=(0, 2, 3))
    ds = ds * slope * case["scale"]
    out["dq"], out["dk"], out["dv"] = ds @ k, summed(ds.swapaxes(2, 3) @ np.nan_to_num(q)), summed(p.swapaxes(2, 3) @ do)
    return out
