// Wrong arguments on flashkit.js: each is a ProblemError that names the field, and nothing is written.
export function run({ load, open, ProblemError, attention }) {
	const failures = [], f32 = (shape, n) => ({ shape, data: new Float32Array(n ?? shape.reduce((a, b) => a * b)).fill(.5) });
	const u16 = (shape, dtype) => ({ shape, data: new Uint16Array(shape.reduce((a, b) => a * b)), dtype });
	const big = new Float32Array(1000), view = (from, shape) => ({ shape, data: big.subarray(from, from + shape.reduce((a, b) => a * b)) });
	const q = f32([2, 4, 3, 8]), k = f32([2, 2, 5, 8]), v = f32([2, 2, 5, 6]), o = f32([2, 4, 3, 6]), lse = new Float32Array(24), dO = f32([2, 4, 3, 6]);
	const forward = { q, k, v }, backward = { q, k, v, o, lse, dO };
	const bad = [
		["forward", undefined, "arguments"], ["forward", null, "arguments"], ["forward", [], "arguments"], ["forward", 7, "arguments"], ["forward", {}, "q"],
		["forward", { colour: 1 }, "colour"], ["forward", { D: -4 }, "D"], ["forward", { dO }, "dO"], ["backward", { carry: true }, "carry"], ["backward", { pages: [0] }, "pages"],
		["forward", { q: undefined }, "q"], ["forward", { q: null }, "q"], ["forward", { q: q.data }, "q"], ["forward", { q: { ...q, name: "q" } }, "q.name"],
		["forward", { q: { ...q, data: Array.from(q.data) } }, "q.data"], ["forward", { q: { ...q, data: new Float64Array(192) } }, "q.data"], ["forward", { q: { ...q, data: new DataView(new ArrayBuffer(768)) } }, "q.data"],
		["forward", { q: { ...q, data: q.data.subarray(1) } }, "q.data"], ["forward", { q: { ...q, data: big } }, "q.data"], ["forward", { q: { ...q, dtype: "bf16" } }, "q.dtype"], ["forward", { q: { ...q, dtype: "f64" } }, "q.dtype"],
		["forward", { q: { shape: q.shape, data: new Uint16Array(192) } }, "q.dtype"], ["forward", { q: { shape: q.shape, data: new Uint8Array(192) } }, "q.data"],
		["forward", { q: { ...q, shape: [8, 3, 8] } }, "q.shape"], ["forward", { q: { ...q, shape: "2438" } }, "q.shape"], ["forward", { q: { ...q, shape: [2, 4, -3, 8] } }, "q.shape[2]"], ["forward", { q: { ...q, shape: [2, 4, 3.5, 8] } }, "q.shape[2]"],
		["forward", { q: { ...q, shape: [2, 4, NaN, 8] } }, "q.shape[2]"], ["forward", { q: { ...q, shape: [2, 4, "3", 8] } }, "q.shape[2]"], ["forward", { q: { ...q, shape: [2, 4, 2 ** 53, 8] } }, "q.shape[2]"], ["forward", { q: { ...q, shape: [2, 4, 2 ** 52, 2 ** 52] } }, "q.data"],
		["forward", { q: f32([2, 0, 3, 8]) }, "q.shape[1]"], ["forward", { q: f32([2, 4, 3, 0]) }, "q.shape[3]"], ["forward", { v: f32([2, 2, 5, 0]) }, "v.shape[3]"], ["forward", { q: { data: big.subarray(0, 0), shape: [0, 4, 2 ** 31, 8] } }, "q.shape[2]"],
		["forward", { k: f32([2, 3, 5, 8]), v: f32([2, 3, 5, 6]) }, "k.shape[1]"], ["forward", { k: f32([2, 0, 5, 8]), v: f32([2, 0, 5, 6]) }, "k.shape[1]"], ["forward", { k: f32([1, 2, 5, 8]) }, "k.shape"], ["forward", { k: f32([2, 2, 5, 7]) }, "k.shape"], ["forward", { v: f32([2, 2, 4, 6]) }, "v.shape"],
		["forward", { k: u16(k.shape, "f16") }, "v.dtype"], ["forward", { q: u16(q.shape, "f16") }, "k.dtype"], ["backward", { k: u16(k.shape, "f16"), v: u16(v.shape, "f16") }, "k.dtype"],
		["forward", { q: { ...q, strides: [96, 24] } }, "q.strides"], ["forward", { q: { ...q, strides: [96, 24, -8] } }, "q.strides[2]"], ["forward", { q: { ...q, strides: [96, 24, 9] } }, "q.data"], ["forward", { q: { ...q, strides: [2 ** 52, 24, 8] } }, "q.data"], ["forward", { q: { ...q, strides: [0, 0, 1.5] } }, "q.strides[2]"],
		["forward", { causal: 1 }, "causal"], ["forward", { causal: "no" }, "causal"], ["forward", { topLeft: null }, "topLeft"], ["forward", { causal: true, window: [1, 0] }, "window"], ["forward", { window: 3 }, "window"], ["forward", { window: [3] }, "window"],
		["forward", { window: [-2, 0] }, "window[0]"], ["forward", { window: [0, .5] }, "window[1]"], ["forward", { window: [-Infinity, 0] }, "window[0]"], ["forward", { shift: .5 }, "shift"], ["forward", { shift: 2 ** 51 }, "shift"],
		["forward", { scale: 0 }, "scale"], ["forward", { scale: -1 }, "scale"], ["forward", { scale: NaN }, "scale"], ["forward", { scale: Infinity }, "scale"], ["forward", { scale: "1" }, "scale"], ["forward", { scale: 1e-45 }, "scale"], ["forward", { softcap: 0 }, "softcap"], ["forward", { softcap: -3 }, "softcap"], ["forward", { softcap: 1e39 }, "softcap"],
		["forward", { dropout: 1, seed: 1 }, "dropout"], ["forward", { dropout: 1 - 2 ** -40, seed: 1 }, "dropout"], ["forward", { dropout: -.1, seed: 1 }, "dropout"], ["forward", { dropout: .1 }, "seed"], ["forward", { seed: -1 }, "seed"], ["forward", { seed: 2n ** 64n }, "seed"], ["forward", { seed: .5 }, "seed"], ["forward", { seed: "1" }, "seed"],
		["forward", { origin: 1 }, "origin"], ["forward", { origin: { keys: 8 } }, "origin.keys"], ["forward", { origin: { key: 4 } }, "origin.key"], ["forward", { origin: { row: -1 } }, "origin.row"], ["forward", { origin: { batch: 2 ** 31 } }, "origin.batch"],
		["forward", { slopes: [1, 1, 1, 1] }, "slopes"], ["forward", { slopes: new Float32Array(5) }, "slopes"], ["forward", { sink: new Float32Array(8) }, "sink"], ["forward", { sink: new Float64Array(4) }, "sink"],
		["forward", { bias: f32([2, 4, 3, 1]) }, "bias.shape"], ["forward", { bias: f32([3, 4, 3, 5]) }, "bias.shape"], ["forward", { bias: u16([1, 1, 1, 5], "f16") }, "bias.dtype"], ["forward", { bias: { shape: [1, 1, 1, 5], data: new Uint8Array(5) } }, "bias.data"],
		["forward", { mask: f32([1, 1, 3, 5]) }, "mask.data"], ["forward", { mask: { shape: [1, 1, 3, 4], data: new Uint8Array(12) } }, "mask.shape"], ["forward", { mask: { shape: [1, 1, 3, 5], data: [true] } }, "mask.data"],
		["forward", { qLens: [1] }, "qLens"], ["forward", { qLens: [1, 4] }, "qLens[1]"], ["forward", { kvLens: [1, 6] }, "kvLens[1]"], ["forward", { kvLens: new Int32Array([-1, 0]) }, "kvLens[0]"], ["forward", { kvLens: "11" }, "kvLens"], ["forward", { kvLens: [1, undefined] }, "kvLens[1]"],
		["forward", { pages: [0, 1] }, "kvLens"], ["forward", { pages: [0, 1, 1], kvLens: [1, 1] }, "pages"], ["forward", { pages: [0, 2], kvLens: [5, 5] }, "pages[1]"], ["forward", { pages: [-1, 1], kvLens: [5, 5] }, "pages[0]"], ["forward", { pages: [0, 1], kvLens: [5, 6] }, "kvLens[1]"], ["forward", { pages: 3, kvLens: [1, 1] }, "pages"],
		["forward", { kernel: "nope" }, "kernel"], ["forward", { kernel: "bwd_simd128" }, "kernel"], ["forward", { kernel: "__proto__" }, "kernel"], ["forward", { q: f32([2, 4, 40, 8]), kernel: "decode_simd128" }, "kernel"],
		["forward", { o: f32([2, 4, 3, 8]) }, "o.shape"], ["forward", { o: u16(o.shape, "f16") }, "o.dtype"], ["forward", { lse: new Float32Array(23) }, "lse"], ["forward", { lse: 1 }, "lse"], ["forward", { carry: true }, "o"], ["forward", { carry: true, o }, "lse"], ["forward", { carry: true, o, lse: true }, "lse"],
		["forward", { v: f32([2, 2, 5, 8]), o: q }, "o"], ["forward", { o: { ...view(0, o.shape) }, lse: big.subarray(100, 124) }, "o"], ["forward", { o: { data: big, shape: o.shape, strides: [72, 6, 6] } }, "o.strides[2]"], ["forward", { o: { data: big, shape: o.shape, strides: [0, 18, 6] } }, "o.strides[0]"],
		["backward", { o: undefined }, "o"], ["backward", { lse: undefined }, "lse"], ["backward", { lse: true }, "lse"], ["backward", { dO: undefined }, "dO"], ["backward", { dO: f32([2, 4, 3, 8]) }, "dO.shape"], ["backward", { dLSE: new Float32Array(1) }, "dLSE"], ["backward", { dQ: k }, "dQ.shape"], ["backward", { dQ: q }, "dQ"],
		["backward", { dBias: true }, "dBias"], ["backward", { dSink: true }, "dSink"], ["backward", { bias: f32([1, 1, 1, 5]), dBias: f32([2, 4, 3, 5]) }, "dBias.shape"], ["backward", { sink: new Float32Array(4), dSink: new Float32Array(3) }, "dSink"], ["backward", { dK: view(0, k.shape), dV: view(100, v.shape) }, "dK"], ["backward", { kernel: "fwd_simd128" }, "kernel"],
		["forward", { [Symbol.toPrimitive]: () => { throw Error("called"); }, toString: 1 }, "toString"], ["forward", { q: new Proxy({}, { get: () => Symbol("x") }) }, "q.data"], ["forward", { kernel: { toString: () => { throw Error("called"); } } }, "kernel"], ["forward", { scale: 1n }, "scale"], ["forward", { window: Symbol("w") }, "window"],
	];
	for (const [pass, changes, field] of bad) {
		const args = Object(changes) === changes && !Array.isArray(changes) && (field !== "q" || changes.q !== undefined || "q" in changes) ? { ...pass === "forward" ? forward : backward, ...changes } : changes;
		const outputs = [changes?.o, changes?.dQ, changes?.dK].filter(Boolean).map(t => [t.data, t.data.slice()]);
		try {
			attention[pass](args);
			failures.push(`${pass} ${field}: no error`);
		} catch (error) {
			if (!(error instanceof ProblemError) || error.field !== field || !error.message.startsWith(`flashkit: ${field} = `)) failures.push(`${pass} ${field}: ${error.name} of ${error.field}: ${error.message}`);
		}
		for (const [data, before] of outputs) if (data.some((x, i) => !Object.is(x, before[i]))) failures.push(`${pass} ${field}: an output was written`);
	}
	failures.push(...right({ attention, f32, q, k, v, big }));
	return { count: bad.length, failures };
}

// right runs unusual but valid calls.
function right({ attention, f32, q, k, v }) {
	const failures = [], same = (name, a, b) => a.length === b.length && a.every((x, i) => Object.is(x, b[i])) || failures.push(`${name}: ${a} differs from ${b}`);
	const want = attention.forward({ q, k, v, lse: true });
	const guarded = new Float32Array(400).fill(7), o = { data: guarded, shape: [2, 4, 3, 6], strides: [96, 8, 32] }; // rows before heads, gaps of 2
	if (attention.forward({ q, k, v, o, kernel: "fwd_simd128" }).o !== o) failures.push("the output is not the caller's tensor");
	for (let b = 0; b < 2; b++) for (let h = 0; h < 4; h++) for (let i = 0; i < 3; i++) {
		const from = b * 96 + h * 8 + i * 32, at = ((b * 4 + h) * 3 + i) * 6;
		same("strides", guarded.slice(from, from + 8), Float32Array.of(...want.o.data.subarray(at, at + 6), 7, 7));
	}
	same("guard", guarded.slice(192), new Float32Array(208).fill(7));
	if (typeof SharedArrayBuffer === "function") {
		const shared = t => ({ ...t, data: new Float32Array(new SharedArrayBuffer(t.data.byteLength)).fill(.5) });
		same("shared memory", attention.forward({ q: shared(q), k: shared(k), v: shared(v), lse: true }).o.data, want.o.data);
	}
	const one = { data: k.data.subarray(0, 5 * 8), shape: k.shape, strides: [0, 0, 8] }; // every head repeats one
	same("stride 0", attention.forward({ q, k: one, v, lse: true }).o.data, want.o.data);
	same("no keys", attention.forward({ q, k: f32([2, 2, 0, 8]), v: f32([2, 2, 0, 6]) }).o.data, new Float32Array(144));
	for (const [n, m] of [[0, 5], [3, 0], [0, 0]]) {
		const [a, b, c] = [f32([2, 4, n, 8]), f32([2, 2, m, 8]), f32([2, 2, m, 6])], { o, lse } = attention.forward({ q: a, k: b, v: c, lse: true }), g = attention.backward({ q: a, k: b, v: c, o, lse, dO: o });
		for (const t of [g.dQ, g.dK, g.dV]) same("empty", t.data, new Float32Array(t.data.length));
	}
	attention.forward({ q: { data: new Float32Array(0), shape: [2 ** 50, 1, 0, 8] }, k: { data: new Float32Array(0), shape: [2 ** 50, 1, 0, 8] }, v: { data: new Float32Array(0), shape: [2 ** 50, 1, 0, 8] } });
	return failures;
}
