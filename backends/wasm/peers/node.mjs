// node node.mjs MODULE PASS T D: prints the median GFLOP/s of one head in V8.
import { compile, prepare, tensors } from './host.mjs';
const [, , path, pass, t, d] = process.argv, T = +t, D = +d;
const p = { N: T, M: T, D, DV: D, first: -2 * T, last: 2 * T, scale: 1 / Math.sqrt(D) };
const x = tensors(p), run = prepare(compile(path), p)[pass];
const kernel = pass === 'forward' ? 'fwd_simd128' : 'bwd_simd128';
const cpu = () => { const u = process.cpuUsage(); return (u.user + u.system) / 1e6; };
if (pass === 'backward') prepare(compile(path), p).forward('fwd_simd128', x);
for (const end = performance.now() + 400; performance.now() < end;) run(kernel, x); // warms up: V8 recompiles hot functions
const times = [];
for (const end = performance.now() + 400; performance.now() < end || times.length < 5;) {
  const start = cpu();
  run(kernel, x);
  times.push(cpu() - start);
}
times.sort((a, b) => a - b);
console.log((4 * T * T * D * (pass === 'forward' ? 1 : 2.5) / times[times.length >> 1] / 1e9).toFixed(2));
