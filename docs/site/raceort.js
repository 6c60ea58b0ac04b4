// This script is the worker of onnxruntime-web. It runs the fused attention
// com.microsoft.MultiHeadAttention on the WebAssembly backend. The page loads this script
// only when a race includes onnxruntime-web.

// These functions encode the fields of an ONNX model, in the wire format of protocol
// buffers.
const varint = n => n < 128 ? [n] : [n & 127 | 128, ...varint(n >>> 7)];
const number = (field, n) => [...varint(field << 3), ...varint(n)];
const bytes = (field, b) => [...varint(field << 3 | 2), ...varint(b.length), ...b];
const text = (field, s) => bytes(field, [...new TextEncoder().encode(s)]);
const float = (field, x) => [...varint(field << 3 | 5), ...new Uint8Array(new Float32Array([x]).buffer)];

// model returns an ONNX model that computes attention with H heads over q, k and v,
// [1][N][H*D].
function model({ H, N, D, scale }) {
	const shape = [1, N, H * D].flatMap(n => bytes(1, number(1, n)));
	const value = name => [...text(1, name), ...bytes(2, bytes(1, [...number(1, 1), ...bytes(2, shape)]))];
	const heads = [...text(1, "num_heads"), ...number(3, H), ...number(20, 2)], factor = [...text(1, "scale"), ...float(2, scale), ...number(20, 1)];
	const node = [...["q", "k", "v"].flatMap(s => text(1, s)), ...text(2, "o"), ...text(4, "MultiHeadAttention"), ...bytes(5, heads), ...bytes(5, factor), ...text(7, "com.microsoft")];
	const graph = [...bytes(1, node), ...text(2, "attention"), ...["q", "k", "v"].flatMap(s => bytes(11, value(s))), ...bytes(12, value("o"))];
	const opset = (domain, version) => bytes(8, [...text(1, domain), ...number(2, version)]);
	return Uint8Array.from([...number(1, 8), ...bytes(7, graph), ...opset("", 17), ...opset("com.microsoft", 1)]);
}

// turn swaps two dimensions: it returns x, [from][to][d], as [to][from][d]. One of the two
// dimensions is heads, the other is rows.
function turn(x, from, to, d) {
	const y = new Float32Array(x.length);
	for (let i = 0; i < from; i++) for (let j = 0; j < to; j++) y.set(x.subarray((i * to + j) * d, (i * to + j + 1) * d), (j * from + i) * d);
	return y;
}

let session, feeds, p;
const does = {
	async open(m) {
		const ort = await import(m.path + "ort.wasm.bundle.min.mjs");
		ort.env.wasm.numThreads = m.threads;
		ort.env.wasm.wasmPaths = m.path;
		p = m.problem;
		session = await ort.InferenceSession.create(model(p), { executionProviders: ["wasm"], graphOptimizationLevel: "all" });
		const feed = x => new ort.Tensor("float32", turn(x, p.H, p.N, p.D), [1, p.N, p.H * p.D]);
		feeds = { q: feed(m.x.q), k: feed(m.x.k), v: feed(m.x.v) };
	},
	async run({ count }) {
		const start = performance.now();
		for (let n = 0; n < count; n++) await session.run(feeds);
		return performance.now() - start;
	},
	output: async () => turn((await session.run(feeds)).o.data, p.N, p.H, p.D),
};
onmessage = async ({ data }) => {
	try {
		postMessage({ result: await does[data.does](data) });
	} catch (error) {
		postMessage({ error: String(error.message ?? error) });
	}
};
