// node golden.mjs [MODULE] runs each problem of golden.json on V8 and prints SHA-256 hashes.
// The simd128 and the scalar kernels give hashes of O, LSE, dQ, dK, dV and dBias. For a
// problem with few rows, decode gives hashes of O and LSE. The output is golden.txt.
import fs from 'node:fs';
import { fileURLToPath } from 'node:url';
import { open, sha256 } from '../js/flashkit.js';
import { seed, tensors } from './noise.mjs';
const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const attention = open(fs.readFileSync(process.argv[2] ?? here('../kernel/kernel.wasm')));
const hash = (x) => sha256(new Uint8Array(x.buffer, x.byteOffset, x.byteLength));
for (const { name, options, window, ...p } of JSON.parse(fs.readFileSync(here('../testdata/golden.json')))) {
  console.log(name);
  seed(1);
  const { dO, ...call } = { ...tensors(p), ...options, seed: BigInt(options.seed), window: window.map((n) => n ?? Infinity) };
  for (const variant of ['simd128', 'scalar']) {
    const { o, lse } = attention.forward({ ...call, lse: true, kernel: `fwd_${variant}` });
    const { dQ, dK, dV, dBias } = attention.backward({ ...call, o, lse, dO, dBias: p.bias, kernel: `bwd_${variant}` });
    console.log([o.data, lse, dQ.data, dK.data, dV.data, dBias?.data].filter(Boolean).map(hash).join(' '));
  }
  if (p.N <= 8) {
    const { o, lse } = attention.forward({ ...call, lse: true, kernel: 'decode_simd128' });
    console.log([o.data, lse].map(hash).join(' '));
  }
}
