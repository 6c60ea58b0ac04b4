// node node.mjs FLASHKIT MODULE PASS T D: prints the median GFLOP/s of one head in V8. FLASHKIT is flashkit.js.
import fs from 'node:fs';
import { pathToFileURL } from 'node:url';
import { tensors } from './noise.mjs';
const [, , flashkit, path, pass, t, d] = process.argv, T = +t, D = +d;
const { open } = await import(pathToFileURL(flashkit).href), attention = open(fs.readFileSync(path));
const { dO, ...call } = tensors({ N: T, M: T, D, DV: D });
call.kernel = 'fwd_simd128';
Object.assign(call, attention.forward({ ...call, lse: true }));
if (pass === 'backward') Object.assign(call, { dO, kernel: 'bwd_simd128' }, attention.backward({ ...call, dO, kernel: 'bwd_simd128' }));
const cpu = () => { const u = process.cpuUsage(); return (u.user + u.system) / 1e6; };
for (const end = performance.now() + 400; performance.now() < end;) attention[pass](call); // warms up: V8 recompiles hot functions
const times = [];
for (const end = performance.now() + 400; performance.now() < end || times.length < 5;) {
  const start = cpu();
  attention[pass](call);
  times.push(cpu() - start);
}
times.sort((a, b) => a - b);
console.log((4 * T * T * D * (pass === 'forward' ? 1 : 2.5) / times[times.length >> 1] / 1e9).toFixed(2));
