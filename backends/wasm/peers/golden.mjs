// node golden.mjs MODULE PROBLEM: prints the SHA-256 of O, LSE, dQ, dK, dV and dBias of
// both kernels of a problem, given as JSON, on V8, and of O and LSE of decode if it has few rows.
import crypto from 'node:crypto';
import { compile, prepare, tensors } from './host.mjs';
const [, , path, json] = process.argv, p = JSON.parse(json), module = compile(path);
const hash = (x) => crypto.createHash('sha256').update(new Uint8Array(x.buffer, x.byteOffset, x.byteLength)).digest('hex');
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
