// Random problems on flashkit.js against a float64 reference in plain JavaScript, with strided and 16-bit
// tensors, all features, and both passes.
import { rounded, widen } from "./half.mjs";

// source returns a generator of random numbers in [0, 1) from a seed (mulberry32).
export function source(seed) {
	return () => {
		seed = seed + 0x6d2b79f5 | 0;
		let t = Math.imul(seed ^ seed >>> 15, seed | 1);
		t ^= t + Math.imul(t ^ t >>> 7, t | 61);
		return ((t ^ t >>> 14) >>> 0) / 2 ** 32;
	};
}

// philox returns the 16 random bits of each of eight pairs, see conformance/testdata/README.md.
function philox(seed, b, h, i, eight) {
	let [c0, c1, c2, c3] = [BigInt(eight), BigInt(i), BigInt(h), BigInt(b)], k0 = seed & 0xffffffffn, k1 = seed >> 32n;
	for (let round = 0; round < 7; round++) {
		const x = 0xd2511f53n * c0, y = 0xcd9e8d57n * c2;
		[c0, c1, c2, c3] = [y >> 32n ^ c1 ^ k0, y & 0xffffffffn, x >> 32n ^ c3 ^ k1, x & 0xffffffffn];
		k0 = k0 + 0x9e3779b9n & 0xffffffffn, k1 = k1 + 0xbb67ae85n & 0xffffffffn;
	}
	const words = [c0, c1, c2, c3].map(Number);
	return [...words.map(word => word & 0xffff), ...words.map(word => word >>> 16)];
}

// at returns a function that reads a tensor, with dimensions of 1 repeated.
function at(t) {
	const data = t.dtype === "f16" || t.dtype === "bf16" ? widen(t.dtype, t.data) : t.data, [, h1, n1, d] = t.shape;
	const s = t.strides ?? [h1 * n1 * d, n1 * d, d];
	return (b, h, i, c) => data[(t.shape[0] === 1 ? 0 : b * s[0]) + (h1 === 1 ? 0 : h * s[1]) + (n1 === 1 ? 0 : i * s[2]) + c];
}

// reference computes O, LSE and, if a has dO, the gradients, in float64, as functions of indices.
export function reference(a) {
	const [B, H, N, D] = a.q.shape, [, G, M] = a.k.shape, DV = a.v.shape[3];
	const q = at(a.q), k = at(a.k), v = at(a.v), bias = a.bias && at(a.bias), mask = a.mask && at(a.mask), dO = a.dO && at(a.dO);
	const scale = Math.fround(a.scale ?? 1 / Math.sqrt(D)), cap = Math.fround(a.softcap ?? 0), drop = Math.min(Math.floor(Math.fround(a.dropout ?? 0) * 65536 + .5), 65535);
	const zeros = (...shape) => ({ shape, data: new Float64Array(shape.reduce((x, y) => x * y)) });
	const index = (t, b, h, i, c) => (((t.shape[0] === 1 ? 0 : b) * t.shape[1] + (t.shape[1] === 1 ? 0 : h)) * t.shape[2] + (t.shape[2] === 1 ? 0 : i)) * t.shape[3] + c;
	const r = { o: zeros(B, H, N, DV), lse: zeros(B, H, N, 1), dQ: zeros(B, H, N, D), dK: zeros(B, G, M, D), dV: zeros(B, G, M, DV), dSink: zeros(1, H, 1, 1) };
	if (a.bias) r.dBias = zeros(...a.bias.shape);
	r.lse.data.fill(-Infinity);
	const { batch = 0, head = 0, row = 0, key = 0 } = a.origin ?? {};
	for (let b = 0; b < B; b++) for (let h = 0; h < H; h++) {
		const g = Math.floor(h / (H / G)), n = a.qLens?.[b] ?? N, m = a.kvLens?.[b] ?? M, off = (a.topLeft ? 0 : m - n) + (a.shift ?? 0);
		const [left, right] = a.causal ? [Infinity, 0] : a.window ?? [Infinity, Infinity], slope = a.slopes ? a.slopes[a.slopes.length === H ? h : b * H + h] : 0;
		for (let i = 0; i < n; i++) {
			const scores = [], slopes = [];
			for (let j = 0; j < m; j++) {
				scores[j] = -Infinity;
				if (j < i + off - left || j > i + off + right || mask && !mask(b, h, i, j)) continue;
				let s = 0;
				for (let c = 0; c < D; c++) s += q(b, h, i, c) * k(b, g, j, c);
				s *= scale, slopes[j] = 1;
				if (cap) slopes[j] = 1 - Math.tanh(s / cap) ** 2, s = cap * Math.tanh(s / cap);
				scores[j] = s + (bias ? bias(b, h, i, j) : 0) - slope * Math.abs(j - i - off);
			}
			const sink = a.sink ? a.sink[h] : -Infinity, most = Math.max(sink, ...scores);
			if (most === -Infinity) continue;
			const lse = most + Math.log(scores.reduce((sum, s) => sum + Math.exp(s - most), Math.exp(sink - most)));
			r.lse.data[(b * H + h) * N + i] = lse;
			const weights = scores.map(s => Math.exp(s - lse)), bits = Array.from({ length: drop ? Math.ceil(m / 8) : 0 }, (_, n) => philox(BigInt(a.seed), batch + b, head + h, row + i, key / 8 + n));
			const keep = weights.map((_, j) => drop === 0 ? 1 : bits[j >> 3][j % 8] < drop ? 0 : 65536 / (65536 - drop));
			const out = Array.from({ length: DV }, (_, c) => weights.reduce((sum, w, j) => sum + (w ? w * keep[j] * v(b, g, j, c) : 0), 0));
			out.forEach((x, c) => r.o.data[index(r.o, b, h, i, c)] = x);
			if (!dO) continue;
			const delta = out.reduce((sum, x, c) => sum + x * dO(b, h, i, c), 0) - (a.dLSE ? a.dLSE[(b * H + h) * N + i] : 0);
			r.dSink.data[h] -= Math.exp(sink - lse) * delta;
			for (let j = 0; j < m; j++) {
				if (!weights[j]) continue;
				let dP = 0;
				for (let c = 0; c < DV; c++) dP += dO(b, h, i, c) * v(b, g, j, c), r.dV.data[index(r.dV, b, g, j, c)] += weights[j] * keep[j] * dO(b, h, i, c);
				const dS = weights[j] * (dP * keep[j] - delta);
				if (a.bias) r.dBias.data[index(r.dBias, b, h, i, j)] += dS;
				for (let c = 0; c < D; c++) {
					r.dQ.data[index(r.dQ, b, h, i, c)] += dS * slopes[j] * scale * k(b, g, j, c);
					r.dK.data[index(r.dK, b, g, j, c)] += dS * slopes[j] * scale * q(b, h, i, c);
				}
			}
		}
	}
	return r;
}

// random returns the arguments of a random problem.
function random(next) {
	const int = (from, to) => from + Math.floor(next() * (to - from + 1)), maybe = (p, f) => next() < p ? f() : undefined, pick = list => list[int(0, list.length - 1)];
	const edge = () => pick([0, 1, 2, 5, 8, 9, 31, 64, 65, 127, 128, 129, 150, 260]);
	const type = pick(["f32", "f32", "f16", "bf16"]), G = int(1, 3), H = G * int(1, 3), B = int(1, 2), N = edge(), M = edge(), D = pick([1, 3, 8, 17, 32, 40]), DV = pick([D, 5, 24]);
	const array = (n, t) => t === "f32" ? Float32Array.from({ length: n }, () => next() * 2 - 1) : rounded(t, Float32Array.from({ length: n }, () => next() * 2 - 1));
	const tensor = (shape, t = type) => {
		const [b, h, n, d] = shape;
		if (next() < .7) return { data: array(b * h * n * d, t), shape, dtype: t };
		const gap = d + int(0, 3); // rows before heads, with a gap after every row
		return { data: array(b * n * h * gap, t), shape, dtype: t, strides: [n * h * gap, gap, h * gap] };
	};
	const pairs = () => [pick([1, B]), pick([1, H]), pick([1, N]), M].map((n, d) => d === 2 && N === 0 ? 0 : n);
	const a = { q: tensor([B, H, N, D]), k: tensor([B, G, M, D]), v: tensor([B, G, M, DV]) };
	Object.assign(a, pick([{}, { causal: true }, { window: [int(0, 80), pick([int(0, 30), Infinity])] }, { causal: true, topLeft: true }, { window: [3, 3], topLeft: true, shift: int(-5, 5) }]));
	a.scale = maybe(.2, () => next() * .5 + .05), a.softcap = maybe(.2, () => next() * 3 + .5), a.slopes = maybe(.2, () => array(pick([1, B]) * H, "f32"));
	a.sink = maybe(.2, () => array(H, "f32")), a.bias = maybe(.25, () => tensor(pairs(), pick(["f32", type])));
	a.mask = maybe(.25, () => (shape => ({ shape, data: Uint8Array.from({ length: shape.reduce((x, y) => x * y) }, () => next() < .2 ? 0 : int(1, 255)) }))(pairs()));
	if (next() < .25) Object.assign(a, { dropout: next() * .6, seed: BigInt(int(0, 2 ** 32)) * 65537n }, next() < .5 && { origin: { batch: int(0, 9), head: int(0, 9), row: int(0, 999), key: 8 * int(0, 99) } });
	a.qLens = maybe(.2, () => Array.from({ length: B }, () => int(0, N))), a.kvLens = maybe(.2, () => Int32Array.from({ length: B }, () => int(0, M)));
	return { a, tensor, array, next };
}

// The bounds of a type: relative to the largest absolute value of the output, which sums of rounded
// products need.
const BOUND = { f32: 2e-5, f16: 4e-3, bf16: 3e-2 };

function compare(name, t, want, type) {
	const get = at(t.shape ? t : { data: t, shape: want.shape }), [B, H, N, D] = want.shape, bound = BOUND[type] * want.data.reduce((most, x) => Number.isFinite(x) ? Math.max(most, Math.abs(x)) : most, 1);
	for (let b = 0, from = 0; b < B; b++) for (let h = 0; h < H; h++) for (let i = 0; i < N; i++) for (let c = 0; c < D; c++, from++) {
		const x = get(b, h, i, c), y = want.data[from];
		if (!(x === y || Math.abs(x - y) <= bound)) return `${name}[${[b, h, i, c]}] = ${x}, want ${y} within ${bound}`;
	}
	return null;
}

// run checks random problems from a seed, and returns the failures.
export function run(flashkit, seed, count) {
	const failures = [];
	for (let n = 0; n < count; n++) {
		const { a, tensor, array } = random(source(seed + n)), { shape: [B, H, N], dtype: type } = a.q, DV = a.v.shape[3], group = H / a.k.shape[1];
		const kernel = [undefined, "fwd_scalar", "fwd_simd128", group * N <= 64 ? "decode_simd128" : undefined][n % 4], fail = text => text && failures.push(`seed ${seed + n}: ${text}`);
		new Float32Array(flashkit.memory.buffer).fill(NaN);
		const forward = flashkit.forward({ ...a, kernel, lse: true, o: n % 3 ? undefined : tensor([B, H, N, DV]) });
		const back = { ...a, o: forward.o, lse: forward.lse, dO: tensor([B, H, N, DV]), dLSE: n % 2 ? array(B * H * N, "f32") : undefined }, exact = reference(back);
		fail(compare("o", forward.o, exact.o, type)), fail(compare("lse", forward.lse, exact.lse, "f32"));
		new Float32Array(flashkit.memory.buffer).fill(NaN);
		const got = flashkit.backward({ ...back, kernel: n % 5 ? "bwd_simd128" : "bwd_scalar", dBias: a.bias && true, dSink: a.sink && true });
		for (const name in got) fail(compare(name, got[name], exact[name], type));
	}
	return failures;
}
