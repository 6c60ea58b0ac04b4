// Tensors of noise for one head, with the numbers that the Go tests use.
let state = 1;
export const seed = (n) => { state = n; };
export function noise(...shape) {
  const data = Float32Array.from({ length: shape.reduce((a, b) => a * b) }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return (state >>> 8) / (1 << 23) - 1;
  });
  return { data, shape };
}

export function tensors({ N, M, D, DV, bias, mask, alibi, sink }) {
  const x = { q: noise(1, 1, N, D), k: noise(1, 1, M, D), v: noise(1, 1, M, DV), dO: noise(1, 1, N, DV) };
  if (bias) x.bias = noise(1, 1, N, M);
  if (mask) x.mask = { shape: [1, 1, N, M], data: Uint8Array.from(noise(N * M).data, (v) => v > -0.5) };
  if (alibi) x.slopes = noise(1).data;
  if (sink) x.sink = noise(1).data;
  return x;
}
