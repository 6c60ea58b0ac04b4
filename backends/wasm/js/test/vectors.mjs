// Runs golden vectors (conformance/testdata/README.md) on flashkit.js, in Node or in a browser.
import { rounded, widen } from "./half.mjs";

const TYPES = ["f32", "f16", "bf16"], GRID = /^b1-h8-g8-n/;
const WIDE_BIAS = ["bias_type", "bias_min_f32", "bias_1e30", "bias_min_part", "bias_largest"];

async function parse(packed) {
	const blob = new Uint8Array(await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer());
	const size = Number(new DataView(blob.buffer).getBigUint64(0, true)), header = JSON.parse(new TextDecoder().decode(blob.subarray(8, 8 + size)));
	const { __metadata__: metadata, ...list } = header, tensors = {};
	for (const [name, { shape, data_offsets: [from, to] }] of Object.entries(list)) tensors[name] = { shape, data: new Float32Array(blob.slice(8 + size + from, 8 + size + to).buffer) };
	return { metadata, tensors };
}

function noise(label, shape) {
	let seed = 0x811c9dc5;
	for (const byte of new TextEncoder().encode(label)) seed = Math.imul(seed ^ byte, 0x01000193);
	const data = Float32Array.from({ length: shape.reduce((a, b) => a * b) }, (_, i) => {
		let h = seed + Math.imul(i, 0x9E3779B9) >>> 0;
		h = Math.imul(h ^ h >>> 16, 0x85EBCA6B);
		h = Math.imul(h ^ h >>> 13, 0xC2B2AE35);
		return (((h ^ h >>> 16) >>> 26) - 32) / 16;
	});
	return { data, shape };
}

// problem returns the dimensions and the options of a call by the name of a problem. An unknown part of the
// name is an error.
function problem(name) {
	const p = { options: {} };
	for (const part of name.split("-").join(" ").replace(/ (?=\d|inf)/g, "-").split(" ")) {
		const [, word, value] = /^(f32|kvf16|kvbf16|window|[a-z]+)(.*)$/.exec(part), numbers = value.split(".");
		const number = x => x === "inf" ? Infinity : Number(x);
		if (/^[bhgnmd]$|^dv$/.test(word)) p[word] = Number(value);
		else if (word === "causal") p.options.causal = true;
		else if (word === "window") p.options.window = numbers.map(number);
		else if (word === "topleft") p.options.topLeft = true;
		else if (word === "page") p.page = Number(value);
		else if (["shift", "scale", "softcap", "dropout"].includes(word)) p.options[word] = Number(value);
		else if (["kvf16", "kvbf16"].includes(word)) p.kv = word.slice(2);
		else if (word === "carry") p.carry = true;
		else if (!["f32", "alibi", "bias", "mask", "sink", "origin", "ragged"].includes(word)) throw Error(`unknown part ${part} of ${name}`);
	}
	p.dv ??= p.d;
	return p;
}

// cases returns the cases of a file: one, or two of the six of a file of the grid.
function cases({ metadata, tensors }, name) {
	const p = problem(metadata.problem);
	for (const [t, shape] of [["q", [p.b, p.h, p.n, p.d]], ["k", [p.b, p.g, p.m, p.d]], ["v", [p.b, p.g, p.m, p.dv]], ["do", [p.b, p.h, p.n, p.dv]]]) tensors[t] ??= noise(`${name}/${t}`, shape);
	if (!GRID.test(name)) return [{ name, p, metadata, tensors }];
	const list = [];
	for (const [b, h] of [[4, 5], [8, 8]]) {
		const derived = {};
		for (const [t, { data, shape }] of Object.entries(tensors)) {
			const n = shape[2], d = shape[3] ?? 1;
			const to = new Float32Array(b * h * n * d);
			for (let r = 0; r < b * h * n; r++) {
				const batch = Math.floor(r / n / h), from = ((3 * batch + Math.floor(r / n) % h) % 8 * n + r % n) * d;
				for (let c = 0; c < d; c++) to[r * d + c] = data[from + (c + batch) % d];
			}
			derived[t] = { shape: [b, h, n, d], data: to };
		}
		list.push({ name: `b${b}-h${h}-${name}`, p: { ...p, b, h, g: h }, metadata, tensors: derived });
	}
	return list;
}

function compare(got, want, bound, relative) {
	if (got.length !== want.length) return `${got.length} numbers, want ${want.length}`;
	for (let i = 0; i < want.length; i++) {
		const most = relative && Math.abs(want[i]) >= 2 ** 20 ? Math.abs(want[i]) * 2 ** -22 : bound;
		const right = Number.isNaN(want[i]) ? Number.isNaN(got[i]) : Number.isFinite(want[i]) ? Math.abs(got[i] - want[i]) <= most : got[i] === want[i];
		if (!right) return `[${i}] = ${got[i]}, want ${want[i]} within ${most}`;
	}
	return null;
}

// paginate moves the keys of each sequence to pages of a pool, in reverse order after an unused page.
function paginate(a, p) {
	const width = Math.ceil(p.m / p.page), pool = p.b * width + 1;
	a.pages = Int32Array.from({ length: p.b * width }, (_, i) => pool - 1 - i);
	for (const name of ["k", "v"]) {
		const { data, shape: [, , , d], dtype } = a[name], moved = new data.constructor(pool * p.g * p.page * d).fill(dtype ? 0x7fff : NaN);
		for (let b = 0; b < p.b; b++) for (let g = 0; g < p.g; g++) for (let j = 0; j < p.m; j++) {
			const from = ((b * p.g + g) * p.m + j) * d, to = ((a.pages[b * width + Math.floor(j / p.page)] * p.g + g) * p.page + j % p.page) * d;
			moved.set(data.subarray(from, from + d), to);
		}
		a[name] = { ...a[name], data: moved, shape: [pool, p.g, p.page, d] };
	}
	// The pairs of the last page's unused keys are not in the file.
	for (const t of [a.bias, a.mask]) if (t) {
		const before = t.shape[3], after = width * p.page, moved = new t.data.constructor(t.data.length / before * after).fill(0x7fff);
		for (let r = 0; r * before < t.data.length; r++) moved.set(t.data.subarray(r * before, (r + 1) * before), r * after);
		t.data = moved, t.shape = [...t.shape.slice(0, 3), after];
	}
}

// args returns the arguments that both passes share, with data in a type.
function args({ name, p, metadata, tensors }, type) {
	const store = (x, as = type) => as === "f32" ? { data: Float32Array.from(x.data), shape: x.shape } : { data: rounded(as, x.data), shape: x.shape, dtype: as };
	const a = { q: store(tensors.q), k: store(tensors.k, p.kv ?? type), v: store(tensors.v, p.kv ?? type), ...p.options };
	if (tensors.bias) a.bias = store(tensors.bias, WIDE_BIAS.includes(name) ? "f32" : type);
	if (tensors.mask) a.mask = { data: Uint8Array.from(tensors.mask.data), shape: tensors.mask.shape };
	if (p.page) paginate(a, p);
	if (tensors.slopes) a.slopes = tensors.slopes.data;
	if (tensors.sink) a.sink = tensors.sink.data;
	if (tensors.q_lens) a.qLens = Array.from(tensors.q_lens.data);
	if (tensors.kv_lens) a.kvLens = Array.from(tensors.kv_lens.data);
	if (metadata.seed) a.seed = BigInt(metadata.seed);
	if (metadata.origin) [a.origin] = [metadata.origin.split(" ").map(Number)].map(([batch, head, row, key]) => ({ batch, head, row, key }));
	return { a, store };
}

// check runs a case in a type on all kernels, and adds failures to the list. It returns the number of runs.
function check(flashkit, one, type, failures) {
	const { name, p, metadata, tensors } = one, { a, store } = args(one, type);
	const number = t => t.dtype === "f16" || t.dtype === "bf16" ? widen(t.dtype, t.data) : t.data ?? t;
	let runs = 0;
	const run = (kernel, outputs, f) => {
		runs++;
		new Float32Array(flashkit.memory.buffer).fill(NaN);
		let results;
		try {
			results = f();
		} catch (error) {
			return failures.push(`${name} ${type} ${kernel}: ${error.message}`);
		}
		for (const [output, field] of outputs) {
			const want = tensors[output].data, wrong = compare(number(results[field]), want, Number(metadata[`bound_${output}_${type}`]), output === "lse");
			if (wrong) failures.push(`${name} ${type} ${kernel}: ${field}${wrong}`);
		}
	};
	for (const kernel of ["fwd_simd128", "fwd_scalar", "decode_simd128", undefined]) {
		if (kernel === "decode_simd128" && p.h / p.g * p.n > 64) continue;
		run(kernel ?? "automatic", kernel ? [["o", "o"], ["lse", "lse"]] : [["o", "o"]], () => {
			const earlier = p.carry ? { carry: true, o: store({ data: tensors.earlier.data, shape: tensors.o.shape }), lse: Float32Array.from(tensors.earlier_lse.data) } : { lse: kernel !== undefined };
			return flashkit.forward({ ...a, kernel, ...earlier });
		});
	}
	const gradients = [["dq", "dQ"], ["dk", "dK"], ["dv", "dV"], ["dbias", "dBias"], ["dsink", "dSink"]].filter(([output]) => tensors[output]);
	for (const kernel of gradients.length ? ["bwd_simd128", "bwd_scalar"] : []) {
		run(kernel, gradients, () => flashkit.backward({
			...a, kernel, o: store(tensors.o), lse: tensors.lse.data, dO: store(tensors.do), dLSE: tensors.dlse?.data, dBias: tensors.dbias !== undefined, dSink: tensors.dsink !== undefined,
		}));
	}
	return runs;
}

// run runs the named files. read returns the bytes of a file. The result counts cases and runs.
export async function run(flashkit, names, read) {
	const failures = [];
	let count = 0, runs = 0;
	for (const name of names) {
		const file = await parse(await read(`${name}.safetensors.gz`));
		if (/-(ranges\d|int8group\d+|rowmax|keymass)\b/.test(file.metadata.problem)) continue; // flashkit.js has none of these
		for (const one of cases(file, name)) {
			count++;
			for (const type of one.p.kv ? ["f32"] : TYPES) if (one.metadata[`bound_o_${type}`] !== undefined) runs += check(flashkit, one, type, failures);
		}
	}
	return { cases: count, runs, failures };
}
