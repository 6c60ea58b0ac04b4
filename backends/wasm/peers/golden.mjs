// node golden.mjs [MODULE] runs each problem of golden.json on V8 and prints SHA-256 hashes.
// The simd128 and the scalar kernels give hashes of O, LSE, dQ, dK, dV and dBias. For a
// problem with few rows, decode gives hashes of O and LSE. The output is golden.txt.
import crypto from 'node:crypto';
import fs from 'node:fs';
import { fileURLToPath } from 'node:url';
import { compile, prepare, seed, tensors } from './host.mjs';
const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const module = compile(process.argv[2] ?? here('../kernel/kernel.wasm'));
const hash = (x) => crypto.createHash('sha256').update(new Uint8Array(x.buffer, x.byteOffset, x.byteLength)).digest('hex');
for (const { name, ...p } of JSON.parse(fs.readFileSync(here('../testdata/golden.json')))) {
  console.log(name);
  seed(1);
  const x = tensors(p);
  for (const variant of ['simd128', 'scalar']) {
    prepare(module, p).forward(`fwd_${variant}`, x);
    prepare(module, p).backward(`bwd_${variant}`, x);
    console.log([x.O, x.LSE, x.DQ, x.DK, x.DV, x.DBias].filter(Boolean).map(hash).join(' '));
  }
  if (p.N <= 8) {
    prepare(module, p).forward('decode_simd128', x);
    console.log([x.O, x.LSE].map(hash).join(' '));
  }
}
