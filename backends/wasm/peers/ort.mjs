// node ort.mjs T D: prints the median GFLOP/s of onnxruntime-web's fused
// attention, com.microsoft.MultiHeadAttention, on one thread. Needs the npm
// packages onnxruntime-web and onnx-proto.
import ort from 'onnxruntime-web';
import proto from 'onnx-proto';
import { noise } from './noise.mjs';

const [, , t, d] = process.argv, T = +t, D = +d, { onnx } = proto;
ort.env.wasm.numThreads = 1;
const tensor = (name) => ({ name, type: { tensorType: { elemType: 1, shape: { dim: [1, T, D].map((n) => ({ dimValue: n })) } } } });
const model = onnx.ModelProto.encode(onnx.ModelProto.create({
  irVersion: 8,
  opsetImport: [{ domain: '', version: 17 }, { domain: 'com.microsoft', version: 1 }],
  graph: {
    name: 'attention', input: ['q', 'k', 'v'].map(tensor), output: [tensor('o')],
    node: [{
      opType: 'MultiHeadAttention', domain: 'com.microsoft', input: ['q', 'k', 'v'], output: ['o'],
      attribute: [{ name: 'num_heads', type: 2, i: 1 }, { name: 'scale', type: 1, f: 1 / Math.sqrt(D) }],
    }],
  },
})).finish();
const session = await ort.InferenceSession.create(model, { executionProviders: ['wasm'], graphOptimizationLevel: 'all' });
const feeds = Object.fromEntries(['q', 'k', 'v'].map((name) => [name, new ort.Tensor('float32', noise(T * D).data, [1, T, D])]));
const cpu = () => { const u = process.cpuUsage(); return (u.user + u.system) / 1e6; };
const times = [];
for (const end = performance.now() + 800; performance.now() < end || times.length < 10;) {
  const start = cpu();
  await session.run(feeds);
  times.push(cpu() - start);
}
times.sort((a, b) => a - b);
console.log((4 * T * T * D / times[times.length >> 1] / 1e9).toFixed(2));
