"""Prints the error of O for caches in int8 and in bf16, against float64, as rows of a Markdown table.

The quantization is QuantizeRows': a scale is the largest magnitude of its group, divided by 127, in
float32. Everything else is computed in float64, so only the cache is rounded. Errors are relative to
the RMS of O.

    python3 tools/int8_error.py
"""

import numpy as np

DIM, KEYS, ROWS, SEEDS = 128, 1024, 64, 4


def int8(x, group):
    """Returns x as quantized and dequantized in groups of a row."""
    parts = x.reshape(len(x), -1, group)
    scale = (np.abs(parts).max(axis=2, keepdims=True) / np.float32(127)).astype(np.float32)
    codes = np.rint(parts / np.where(scale > 0, scale, 1).astype(np.float64))
    return (np.clip(codes, -127, 127) * scale.astype(np.float64)).reshape(x.shape)


def bf16(x):
    """Returns x rounded to bf16, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    bits = bits + 0x7FFF + (bits >> 16 & 1)
    return (bits & 0xFFFF0000).astype(np.uint32).view(np.float32)


def attention(q, k, v):
    s = q.astype(np.float64) @ k.astype(np.float64).T / np.sqrt(DIM)
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return p @ v.astype(np.float64) / p.sum(axis=1, keepdims=True)


def normal(rng, rows):
    return rng.standard_normal((rows, DIM)).astype(np.float32)


def outliers(rng, rows):
    """Returns normal data with four channels that are ten times larger."""
    x = normal(rng, rows)
    x[:, 5::32] *= 10
    return x


def main():
    caches = {"bf16": bf16} | {f"int8, group of {g}": lambda x, g=g: int8(x, g) for g in (32, 64, DIM)}
    print("| cache | normal: RMS | normal: max | outliers: RMS | outliers: max |\n|---|---|---|---|---|")
    for name, cache in caches.items():
        cells = []
        for make in (normal, outliers):
            errors, sizes = [], []
            for seed in range(SEEDS):
                rng = np.random.default_rng(seed)
                q, k, v = normal(rng, ROWS), make(rng, KEYS), make(rng, KEYS)
                want = attention(q, k, v)
                errors.append(attention(q, cache(k), cache(v)) - want)
                sizes.append(want)
            size = np.sqrt(np.mean(np.square(sizes)))
            cells += [f"{np.sqrt(np.mean(np.square(errors))) / size:.2g}", f"{np.abs(errors).max() / size:.2g}"]
        print("| " + " | ".join([name, *cells]) + " |")


if __name__ == "__main__":
    main()
