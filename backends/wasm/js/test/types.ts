// tsc --strict checks this file against flashkit.d.ts: right calls compile, and each wrong call is an error.
import { load, open, sha256, ProblemError, SHA256, type Attention, type Tensor } from "../flashkit.js";

const f32 = (...shape: [number, number, number, number]): Tensor<Float32Array> => ({ shape, data: new Float32Array(shape.reduce((a, b) => a * b)) });
const bf16 = (...shape: [number, number, number, number]): Tensor<Uint16Array> => ({ shape, data: new Uint16Array(shape.reduce((a, b) => a * b)), dtype: "bf16" });

export async function right(): Promise<Float32Array> {
  const attention: Attention = await load(), q = f32(1, 8, 4, 8), k = f32(1, 2, 4, 8), v = f32(1, 2, 4, 8);
  await load("https://example.com/kernel.wasm");
  await load(new Uint8Array(8));
  open(new Uint8Array(8)).forward({ q, k, v });
  const { o, lse } = attention.forward({ q, k, v, causal: true, lse: true, softcap: 20, slopes: new Float32Array(8), mask: { data: new Uint8Array(16), shape: [1, 1, 4, 4] } });
  const { dQ, dBias } = attention.backward({ q, k, v, o, lse, dO: o, window: [4, Infinity], bias: f32(1, 1, 1, 4), dBias: true, dropout: 0.1, seed: 1n });
  const half: Uint16Array = attention.forward({ q: bf16(1, 1, 1, 8), k: bf16(1, 1, 4, 8), v: bf16(1, 1, 4, 8), kvLens: [3] }).o.data;
  attention.forward({ q, k: bf16(1, 2, 4, 8), v: bf16(1, 2, 4, 8), pages: new Int32Array(1), kvLens: [4], kernel: "decode_simd128" });
  const error: Error = new ProblemError("q", half, "must be right"), field: string = new ProblemError("q", dBias, "").field;
  return sha256(new Uint8Array()) + field + error.message === SHA256 ? lse : dQ.data;
}

export function wrong(attention: Attention): void {
  const q = f32(1, 1, 1, 8), k = q, v = q, o = q, dO = q, lse = new Float32Array(1);
  // @ts-expect-error a missing argument
  attention.forward({ q, k });
  // @ts-expect-error an unknown name
  attention.forward({ q, k, v, colour: 1 });
  // @ts-expect-error three dimensions
  attention.forward({ q: { data: new Float32Array(8), shape: [1, 1, 8] }, k, v });
  // @ts-expect-error numbers of another type
  attention.forward({ q: { data: new Float64Array(8), shape: [1, 1, 1, 8] }, k, v });
  // @ts-expect-error a kernel of the other pass
  attention.forward({ q, k, v, kernel: "bwd_simd128" });
  // @ts-expect-error LSE may be absent unless it is requested
  attention.forward({ q, k, v }).lse.length;
  // @ts-expect-error the backward pass has no pages
  attention.backward({ q, k, v, o, lse, dO, pages: [0] });
  // @ts-expect-error a tensor of another type than q
  attention.backward({ q, k, v, o: bf16(1, 1, 1, 8), lse, dO });
  // @ts-expect-error LSE is required
  attention.backward({ q, k, v, o, dO });
}
