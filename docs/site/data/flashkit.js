// Made by make site.
function flashkitHost() {
"use strict";
const SHA256 = "763fdce208526676299c8cf90df1916e897ba1088f8ad61976f7a8b22b33d75c"; // of kernel.wasm
const MAGIC = 0x4b484c46, ABI = 3, WORDS = 48, PAGE = 65536;
const TILE = 128, STRIP = 64;                         // rows of the stage; keys that the backward kernel processes at a time
const FEW = 8, DECODE_ROWS = 64, DECODE_BELOW = 17;   // decode: rows of a call, limit and automatic limit of the rows of a KV head
const FIRST = 1, LAST = 2, SCALED = 4, MORE = 8;      // flags of a call for rows
const SOFTCAP = 1, ALIBI = 2, BIAS = 4, MASK = 8, SINK = 16, DROPOUT = 32, CARRY = 64, DBIAS = 128;
const CODES = ["ok", "bad block", "bad version", "bad shape", "bad tensor", "bad scratch", "bad range", "bad feature"];
const MAX_DIM = 2 ** 20, MAX_ROWS = 2 ** 30, MAX_SHIFT = 2 ** 50, MAX_BYTES = 65535 * PAGE;
const MIN_NORMAL = 2 ** -126, MAX_FLOAT = (2 - 2 ** -23) * 2 ** 127;
const up = (n, to) => Math.ceil(n / to) * to;
const product = list => list.reduce((a, b) => a * b, 1);
function show(x) {
if (typeof x === "string") return JSON.stringify(x.length > 40 ? `${x.slice(0, 40)}…` : x);
if (typeof x === "bigint" || x === undefined || x === null || typeof x === "number" || typeof x === "boolean") return String(x);
if (Array.isArray(x)) return `[${Array.from(x).slice(0, 8).map(v => typeof v === "object" ? "…" : show(v)).join(",")}${x.length > 8 ? ",…" : ""}]`;
return kindOf(x) ?? `a ${typeof x}`;
}
class ProblemError extends Error {
constructor(field, value, want) {
super(`flashkit: ${field} = ${show(value)}: ${want}`);
this.name = "ProblemError";
this.field = field;
}
}
function require(ok, field, value, want) {
if (!ok) throw new ProblemError(field, value, want);
}
const tagOf = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(Uint8Array.prototype), Symbol.toStringTag).get;
const kindOf = x => tagOf.call(x);
const TYPES = { Float32Array: ["f32"], Float16Array: ["f16"], Uint16Array: ["f16", "bf16"], Uint8Array: ["mask"], Uint8ClampedArray: ["mask"] };
const EITHER = ["q", "k", "v", "o", "lse", "causal", "window", "topLeft", "shift", "scale", "softcap", "slopes", "bias", "mask", "sink", "dropout", "seed", "origin", "qLens", "kvLens", "kernel"];
const NAMES = { forward: [...EITHER, "carry", "pages"], backward: [...EITHER, "dO", "dLSE", "dQ", "dK", "dV", "dBias", "dSink"] };
const KERNELS = { forward: ["fwd_simd128", "fwd_scalar", "decode_simd128"], backward: ["bwd_simd128", "bwd_scalar"] };
function known(at, x, names) {
require(typeof x === "object" && x !== null && !Array.isArray(x) && !kindOf(x), at, x, `must be an object with fields ${names.join(", ")}`);
for (const name of Object.keys(x)) require(names.includes(name), at === "arguments" ? name : `${at}.${name}`, x[name], `unknown name; the names are ${names.join(", ")}`);
return Object.fromEntries(names.map(name => [name, x[name]]));
}
function integer(field, x, from, to) {
require(Number.isSafeInteger(x) && x >= from && x <= to, field, x, `must be an integer from ${from} to ${to}`);
return x;
}
function real(field, x, from, to) {
require(typeof x === "number" && Math.fround(x) >= Math.fround(from) && x <= to, field, x, `must be a number from ${from} to ${to}`);
return Math.fround(x);
}
function flag(field, x) {
require(x === undefined || typeof x === "boolean", field, x, "must be true or false");
return x === true;
}
function tensor(at, x) {
require(x !== undefined, at, x, "is missing");
const t = known(at, x, ["data", "shape", "dtype", "strides"]), kind = kindOf(t.data);
require(TYPES[kind], `${at}.data`, t.data, "must be a Float32Array, Float16Array or Uint16Array, or a Uint8Array for a mask");
const types = TYPES[kind], dtype = t.dtype ?? (types.length === 1 ? types[0] : undefined);
require(types.includes(dtype), `${at}.dtype`, t.dtype, `must be ${types.map(show).join(" or ")} for a ${kind}`);
const shape = Array.isArray(t.shape) ? Array.from(t.shape) : [];
require(shape.length === 4, `${at}.shape`, t.shape, "must be an array of 4 numbers");
shape.forEach((n, d) => integer(`${at}.shape[${d}]`, n, 0, Number.MAX_SAFE_INTEGER));
const { length } = t.data, dense = t.strides === undefined, want = product(shape);
let strides = [shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3]], last = 0;
if (dense) require(length === want, `${at}.data`, t.data, `has ${length} elements, must have ${want} for shape ${show(shape)}`);
else {
strides = Array.isArray(t.strides) ? Array.from(t.strides) : [];
require(strides.length === 3, `${at}.strides`, t.strides, "must be an array of 3 numbers, for the first 3 dimensions");
strides.forEach((n, d) => integer(`${at}.strides[${d}]`, n, 0, Number.MAX_SAFE_INTEGER));
last = strides.reduce((sum, n, d) => sum + n * (shape[d] - 1), shape[3] - 1);
require(want === 0 || last < length, `${at}.data`, t.data, `has ${length} elements, must have ${last + 1} for shape ${show(shape)} and strides ${show(strides)}`);
}
strides = strides.map((n, d) => shape[d] === 1 ? 0 : n);
const bits = dtype === "f16" || dtype === "bf16" ? new Uint16Array(t.data.buffer, t.data.byteOffset, length) : null;
return { at, data: t.data, bits, dtype, shape, strides, dense, last: dense ? want - 1 : last, given: x };
}
function vector(at, data, shape) {
require(kindOf(data) === "Float32Array", at, data, "must be a Float32Array");
require(data.length === product(shape), at, data, `has ${data.length} elements, must have ${product(shape)}`);
return tensor(at, { data, shape });
}
function shaped(t, want, repeats = 0) {
require(t.shape.every((n, d) => n === want[d] || d < repeats && n === 1), `${t.at}.shape`, t.shape, `must be ${show(want)}${repeats ? `, or 1 in place of the first ${repeats === 1 ? "number" : `${repeats} numbers`}` : ""}`);
return t;
}
function typed(t, ...types) {
require((t.dtype === "mask") === (types[0] === "mask"), `${t.at}.data`, t.data, types[0] === "mask" ? "must be a Uint8Array" : "must be a Float32Array, Float16Array or Uint16Array");
require(types.includes(t.dtype), `${t.at}.dtype`, t.dtype, `must be ${types.map(show).join(" or ")}`);
return t;
}
const ARRAYS = { f32: () => Float32Array, f16: like => kindOf(like.data) === "Float16Array" ? Float16Array : Uint16Array, bf16: () => Uint16Array };
function output(at, x, shape, like) {
if (x !== undefined && x !== true) return typed(shaped(tensor(at, x), shape), like.dtype);
const data = new (ARRAYS[like.dtype](like))(product(shape));
return tensor(at, { data, shape, dtype: like.dtype });
}
function apart(outputs, all) {
for (const t of outputs) {
let reach = t.shape[3];
for (const d of [0, 1, 2].filter(d => t.shape[d] > 1).sort((a, b) => t.strides[a] - t.strides[b])) {
require(product(t.shape) === 0 || t.strides[d] >= reach, `${t.at}.strides[${d}]`, t.strides[d], "lets elements of an output overlap");
reach += (t.shape[d] - 1) * t.strides[d];
}
const range = x => [x.data.byteOffset, x.data.byteOffset + (x.last + 1) * x.data.BYTES_PER_ELEMENT];
for (const other of all) {
if (other === t || other.data.buffer !== t.data.buffer || !product(t.shape) || !product(other.shape)) continue;
const [a, b] = range(t), [c, d] = range(other);
require(a >= d || c >= b || !(t.dense && other.dense || a === c || b === d), t.at, t.data, `shares memory with ${other.at}`);
}
}
}
function list(at, x) {
require(Array.isArray(x) || kindOf(x) === "Int32Array", at, x, "must be an array of numbers or an Int32Array");
return Array.from(x);
}
function lengths(at, x, batch, most) {
if (x === undefined) return null;
const all = list(at, x);
require(all.length === batch, at, x, `has ${all.length} elements, must have ${batch}`);
return all.map((n, b) => integer(`${at}[${b}]`, n, 0, most));
}
function band(a) {
const c = { left: Infinity, right: Infinity, topLeft: flag("topLeft", a.topLeft), shift: a.shift === undefined ? 0 : integer("shift", a.shift, -MAX_SHIFT, MAX_SHIFT) };
if (flag("causal", a.causal)) {
require(a.window === undefined, "window", a.window, "must not be given with causal, which is the window [Infinity, 0]");
c.right = 0;
}
if (a.window !== undefined) {
require(Array.isArray(a.window) && a.window.length === 2, "window", a.window, "must be an array of 2 numbers: keys before and after the diagonal");
[c.left, c.right] = a.window;
for (const [d, n] of [c.left, c.right].entries()) if (n !== Infinity) integer(`window[${d}]`, n, 0, Number.MAX_SAFE_INTEGER);
}
return c;
}
function check(args, pass) {
const a = known("arguments", args, NAMES[pass]), backward = pass === "backward";
const q = typed(tensor("q", a.q), "f32", "f16", "bf16"), [B, H, N, D] = q.shape;
const k = tensor("k", a.k), v = tensor("v", a.v), G = k.shape[1], DV = v.shape[3], pages = a.pages === undefined ? null : list("pages", a.pages), pool = pages ? k.shape[0] : B;
require(!pages || B > 0 && pages.length % B === 0, "pages", a.pages, `has ${pages?.length} elements, must have a multiple of q.shape[0] = ${B}`);
const width = pages ? pages.length / B : 1, M = width * k.shape[2];
integer("q.shape[1]", H, 1, Number.MAX_SAFE_INTEGER), integer("q.shape[3]", D, 1, MAX_DIM);
integer("v.shape[3]", DV, 1, MAX_DIM), integer("q.shape[2]", N, 0, MAX_ROWS), integer("k.shape[2]", k.shape[2], pages ? 1 : 0, Math.floor((MAX_ROWS - N) / Math.max(1, width)));
require(G > 0 && H % G === 0, "k.shape[1]", G, `must divide q.shape[1] = ${H}`);
shaped(k, [pool, G, k.shape[2], D]), shaped(v, [pool, G, k.shape[2], DV]);
typed(k, ...(q.dtype === "f32" && !backward ? ["f32", "f16", "bf16"] : [q.dtype])), typed(v, k.dtype);
const rows = [B, H, N, 1], c = { pass, B, H, G, N, M, D, DV, q, k, v, pages, width, ...band(a), group: H / G, outputs: [], inputs: [q, k, v] };
const into = (...list) => (c.outputs.push(...list), list[0]), from = (...list) => (c.inputs.push(...list), list[0]);
c.scale = a.scale === undefined ? Math.fround(1 / Math.sqrt(D)) : real("scale", a.scale, MIN_NORMAL, MAX_FLOAT);
c.softcap = a.softcap === undefined ? 0 : real("softcap", a.softcap, MIN_NORMAL, MAX_FLOAT);
c.dropout = 0;
if (a.dropout !== undefined) {
require(typeof a.dropout === "number" && a.dropout >= 0 && Math.fround(a.dropout) < 1, "dropout", a.dropout, "must be at least 0 and less than 1");
c.dropout = Math.fround(a.dropout);
require(c.dropout === 0 || a.seed !== undefined, "seed", a.seed, "is missing: dropout needs a seed");
}
const seed = a.seed ?? 0;
require(typeof seed === "bigint" ? seed >= 0n && seed < 2n ** 64n : Number.isSafeInteger(seed) && seed >= 0, "seed", seed, "must be an integer from 0 to 2^64-1");
c.seed = [Number(BigInt(seed) & 0xffffffffn), Number(BigInt(seed) >> 32n)];
const origin = a.origin === undefined ? {} : known("origin", a.origin, ["batch", "head", "row", "key"]);
c.origin = {};
for (const [name, n] of [["batch", B], ["head", H], ["row", N], ["key", M]]) c.origin[name] = integer(`origin.${name}`, origin[name] ?? 0, 0, Math.max(0, 2 ** 31 - 1 - n));
require(c.origin.key % 8 === 0, "origin.key", c.origin.key, "must be a multiple of 8");
c.qLens = lengths("qLens", a.qLens, B, N), c.kvLens = lengths("kvLens", a.kvLens, B, M);
require(!pages || c.kvLens, "kvLens", a.kvLens, "is missing: pages need the lengths of the sequences");
for (let b = 0; pages && b < B; b++) for (let i = 0; i * k.shape[2] < c.kvLens[b]; i++) integer(`pages[${b * width + i}]`, pages[b * width + i], 0, pool - 1);
if (a.bias !== undefined) c.bias = from(shaped(typed(tensor("bias", a.bias), ...new Set(["f32", q.dtype])), [B, H, N, M], 3));
if (a.mask !== undefined) c.mask = from(shaped(typed(tensor("mask", a.mask), "mask"), [B, H, N, M], 3));
if (a.slopes !== undefined) c.slopes = from(vector("slopes", a.slopes, [a.slopes?.length === H ? 1 : B, H, 1, 1]));
if (a.sink !== undefined) c.sink = from(vector("sink", a.sink, [1, H, 1, 1]));
c.carry = flag("carry", a.carry);
if (!backward) {
if (c.carry) for (const name of ["o", "lse"]) require(a[name] !== undefined && a[name] !== true, name, a[name], "must be the earlier result with carry");
c.o = into(output("o", a.o, [B, H, N, DV], q));
if (a.lse !== undefined && a.lse !== false) c.lse = into(vector("lse", a.lse === true ? new Float32Array(product(rows)) : a.lse, rows));
} else {
c.o = from(shaped(typed(tensor("o", a.o), q.dtype), [B, H, N, DV])), c.lse = from(vector("lse", a.lse, rows));
c.dO = from(shaped(typed(tensor("dO", a.dO), q.dtype), [B, H, N, DV]));
if (a.dLSE !== undefined) c.dLSE = from(vector("dLSE", a.dLSE, rows));
c.dQ = into(output("dQ", a.dQ, q.shape, q)), c.dK = into(output("dK", a.dK, k.shape, k)), c.dV = into(output("dV", a.dV, v.shape, v));
for (const [name, of] of [["dBias", "bias"], ["dSink", "sink"]]) {
if (a[name] === undefined || a[name] === false) continue;
require(c[of], name, a[name], `needs ${of}`);
c[name] = into(of === "bias" ? output(name, a[name], c.bias.shape, c.bias) : vector(name, a[name] === true ? new Float32Array(H) : a[name], [1, H, 1, 1]));
}
}
apart(c.outputs, [...c.inputs, ...c.outputs]);
require(a.kernel === undefined || KERNELS[pass].includes(a.kernel), "kernel", a.kernel, `must be one of ${KERNELS[pass].join(", ")}`);
const perKV = c.group * N;
require(a.kernel !== "decode_simd128" || perKV <= DECODE_ROWS, "kernel", a.kernel, `supports up to ${DECODE_ROWS} query rows of a KV head, not ${perKV}`);
c.kernel = a.kernel ?? (backward ? "bwd_simd128" : perKV < DECODE_BELOW && !c.lse ? "decode_simd128" : "fwd_simd128");
c.features = (c.softcap && SOFTCAP) | (c.slopes && ALIBI) | (c.bias && BIAS) | (c.mask && MASK) | (c.sink && !backward && SINK) | (c.dropout && DROPOUT) | (c.carry && CARRY) | (c.dBias && DBIAS);
c.pairs = c.features & (BIAS | MASK);
return c;
}
function sequence(c, b) {
const n = c.qLens ? c.qLens[b] : c.N, m = c.kvLens ? c.kvLens[b] : c.M, reach = n + m;
const diagonal = (c.topLeft ? 0 : m - n) + c.shift;
const lo = c.left < diagonal + reach ? Math.min(diagonal - c.left, reach) : -reach;
const hi = c.right < reach - diagonal ? Math.max(diagonal + c.right, -reach) : reach;
return { b, n, m, lo, hi, diagonal };
}
function seen(s, i0, i1) {
const clamp = x => Math.max(0, Math.min(x, s.m)), lo = clamp(i0 + s.lo);
return [lo, Math.max(lo, clamp(i1 - 1 + s.hi + 1))];
}
const one = new Float32Array(1), word = new Uint32Array(one.buffer);
let f16; // the bits of float32 by the bits of float16
function wideF16() {
return f16 ??= Uint32Array.from({ length: 65536 }, (_, h) => {
const sign = h >> 15 << 31, e = h >> 10 & 31, m = h & 1023;
if (e === 31) return sign | 0xff << 23 | m << 13;
if (e > 0) return sign | e + 112 << 23 | m << 13;
one[0] = m * 2 ** -24;
return word[0] | sign;
});
}
const narrow = {
f16(b) {
const sign = b >>> 16 & 0x8000;
b &= 0x7fffffff;
if (b > 0x7f800000) return sign | 0x7e00 | b >>> 13 & 0x3ff;
if (b >= 0x47800000) return sign | 0x7c00;
if (b >= 0x38800000) return sign | (b + 0xfff + (b >>> 13 & 1) >>> 13) - (112 << 10);
word[0] = b, one[0] += .5;
return sign | word[0] - 0x3f000000;
},
bf16: b => (b & 0x7fffffff) > 0x7f800000 ? b >>> 16 | 0x40 : b + 0x7fff + (b >>> 16 & 1) >>> 16 & 0xffff,
};
function open(module) {
const compiled = module instanceof ArrayBuffer || ArrayBuffer.isView(module) ? new WebAssembly.Module(module) : module;
const { exports } = new WebAssembly.Instance(compiled, {});
if (exports.abi() !== ABI) throw Error(`flashkit: the ABI of the module is ${exports.abi()}, want ${ABI}`);
const base = exports.__heap_base.value, { memory } = exports;
let f32, u32, u16, bytes;
const refresh = () => (f32 = new Float32Array(memory.buffer), u32 = new Uint32Array(memory.buffer), u16 = new Uint16Array(memory.buffer), bytes = new Uint8Array(memory.buffer));
refresh();
function plan(lay) {
let end = base;
const w = lay(floats => {
const at = up(end, 64);
end = at + 4 * floats;
return at;
});
if (end > memory.buffer.byteLength) {
try {
if (end > MAX_BYTES) throw RangeError();
memory.grow(Math.ceil((end - memory.buffer.byteLength) / PAGE));
} catch {
throw Error(`flashkit: one head needs ${end} bytes of memory, which the module cannot get`);
}
refresh();
}
return w;
}
const call = (name, ...args) => {
const code = exports[name](...args);
if (code !== 0) throw Error(`flashkit: kernel.wasm: ${name}(${args.join(", ")}): ${CODES[code] ?? `code ${code}`}`);
};
const offset = (t, b, h, r) => b * t.strides[0] + h * t.strides[1] + r * t.strides[2];
function put(at, t, from, n) {
if (t.dtype === "f32") f32.set(t.data.subarray(from, from + n), at / 4);
else if (t.dtype === "mask") for (let i = 0; i < n; i++) bytes[at + i] = t.data[from + i] === 0 ? 0 : 1;
else if (t.dtype === "bf16") for (let i = 0, to = at / 4; i < n; i++) u32[to + i] = t.bits[from + i] << 16;
else for (let i = 0, to = at / 4, wide = wideF16(); i < n; i++) u32[to + i] = wide[t.bits[from + i]];
}
function get(at, t, to, n) {
if (t.dtype === "f32") t.data.set(f32.subarray(at / 4, at / 4 + n), to);
else for (let i = 0, from = at / 4, round = narrow[t.dtype]; i < n; i++) t.bits[to + i] = round(u32[from + i]);
}
function each(at, t, b, h, r, n, size, f) {
const from = offset(t, b, h, r), dim = t.shape[3], step = t.strides[2];
if (n === 0) return;
if (n === 1 || step === dim) return f(at, t, from, n * dim);
for (let i = 0; i < n; i++) f(at + size * dim * i, t, from + step * i, dim);
}
const load = (at, t, b, h, r, n) => each(at, t, b, h, r, n, 4, put);
const store = (at, t, b, h, r, n) => each(at, t, b, h, r, n, 4, get);
function keys(copy, at, c, t, b, g, j0, j1) {
const page = t.shape[2];
if (!c.pages) return copy(at, t, b, g, j0, j1 - j0);
for (let j = j0, n; j < j1; j += n) {
n = Math.min(page - j % page, j1 - j);
copy(at + (copy === raw ? 2 : 4) * (j - j0) * t.shape[3], t, c.pages[b * c.width + Math.floor(j / page)], g, j % page, n);
}
}
const raw = (at, t, b, h, r, n) => each(at, t, b, h, r, n, 2, (at, t, from, n) => u16.set(t.bits.subarray(from, from + n), at / 2));
const zero = (at, n) => f32.fill(0, at / 4, at / 4 + n);
function fill(t, b, from, to, value) {
const n = t.shape[3], data = t.bits ?? t.data;
for (let h = 0; from < to && h < t.shape[1]; h++) for (let r = from; r < to; r++) data.fill(value, offset(t, b, h, r), offset(t, b, h, r) + n);
}
function writeBlock(c, w, s, key0, keys) {
const at = w.block / 4;
u32.fill(0, at, at + WORDS);
u32.set([MAGIC, ABI, c.D, c.DV, key0, keys, s.lo, s.hi, 0, w.q, w.k, w.v, w.o, w.lse, w.dO ?? 0, w.dLSE ?? 0, w.dQ ?? 0, w.scratch, w.scratchBytes], at);
f32[at + 8] = c.scale;
if (w.rawK) u32.set([c.k.dtype === "bf16" ? 2 : 1, w.rawK, w.rawV], at + 35);
}
function writeScore(c, w, s, h) {
if (c.features === 0) return;
const at = w.block / 4, { origin } = c, drops = Math.min(Math.floor(c.dropout * 65536 + .5), 65535);
const alike = (c.bias?.shape[2] === 1 ? BIAS : 0) | (c.mask?.shape[2] === 1 ? MASK : 0);
u32.set([c.features, s.diagonal, Math.floor(s.diagonal / 2 ** 32), 0, 0, 0, drops * 65536, 0, ...c.seed, origin.head + h, origin.batch + s.b, w.bias, w.mask, w.dBias, alike], at + 19);
u32.set([origin.row, origin.key / 8], at + 38);
f32[at + 22] = c.softcap, f32[at + 26] = 65536 / (65536 - drops);
const slope = c.slopes ? c.slopes.data[offset(c.slopes, s.b, h, 0)] : 0, sink = c.sink ? c.sink.data[h] : 0;
f32[at + 23] = Math.abs(slope) === Infinity ? NaN : slope, f32[at + 24] = sink === Infinity ? NaN : sink;
}
function loadPairs(c, w, s, h, i0, i1, j0, j1) {
for (let i = i0; j0 < j1 && i < i1; i++) {
for (const [t, at, size] of [[c.bias, w.bias, 4], [c.mask, w.mask, 1]])
if (t && (i === i0 || t.shape[2] > 1)) put(at + (i - i0) * TILE * size, t, offset(t, s.b, h, i) + j0, j1 - j0);
}
}
const pairAreas = (c, take) => ({ bias: c.bias ? take(TILE * TILE) : 0, dBias: c.dBias ? take(TILE * TILE) : 0, mask: c.mask ? take(TILE * TILE / 4) : 0 });
const rowsOf = c => c.features ? `${c.kernel.replace("_scalar", "")}_feature_rows` : `${c.kernel}_rows`;
const scratchOf = (take, floats) => ({ scratch: take(floats), scratchBytes: 4 * floats });
const stageKeys = (c, w, b, g, j0, j1) => {
keys(load, w.k, c, c.k, b, g, j0, j1), keys(load, w.v, c, c.v, b, g, j0, j1);
call(`${c.kernel}_keys`, w.block, j0, j1);
};
function runForward(c) {
const d8 = up(c.D, 8), dv8 = up(c.DV, 8), all = up(c.M, TILE), { D, DV } = c;
const w = plan(take => ({
block: take(WORDS), q: take(TILE * D), k: take(TILE * D), v: take(TILE * DV), o: take(TILE * DV), lse: take(TILE), ...pairAreas(c, take),
...scratchOf(take, all * (d8 + dv8) + up(all / TILE, 4) + TILE * (4 * d8 + 2 * dv8) + 3 * TILE + 4 * TILE + 16 * TILE),
})), rows = rowsOf(c), most = c.pairs ? TILE : MAX_ROWS;
for (let b = 0; b < c.B; b++) for (let g = 0; g < c.G; g++) {
const s = sequence(c, b), packed = new Set();
writeBlock(c, w, s, 0, s.m);
for (let h = g * c.group; s.n > 0 && h < (g + 1) * c.group; h++) for (let i0 = 0; i0 < s.n; i0 += TILE) {
const i1 = Math.min(i0 + TILE, s.n), [lo, hi] = seen(s, i0, i1), n = i1 - i0;
for (let j = Math.floor(lo / TILE) * TILE; j < hi; j += TILE) {
if (!packed.has(j)) stageKeys(c, w, b, g, j, Math.min(j + TILE, s.m));
packed.add(j);
}
load(w.q, c.q, b, h, i0, n);
writeScore(c, w, s, h);
if (c.carry) load(w.o, c.o, b, h, i0, n), load(w.lse, c.lse, b, h, i0, n);
for (let j0 = Math.floor(lo / TILE) * TILE, flags = FIRST; !(flags & LAST); j0 += most, flags &= ~FIRST) {
const j1 = Math.max(j0, Math.min(j0 + most, hi));
if (j0 + most >= hi) flags |= LAST;
loadPairs(c, w, s, h, i0, i1, j0, j1);
call(rows, w.block, i0, i1, j0, j1, flags);
}
store(w.o, c.o, b, h, i0, n);
if (c.lse) store(w.lse, c.lse, b, h, i0, n);
}
}
}
function runDecode(c) {
const { D, DV } = c, half = c.k.bits !== null, each = Math.ceil(c.N / FEW), all = c.group * each;
const shared = {}, list = [];
plan(take => {
Object.assign(shared, { k: take(TILE * D), v: take(TILE * DV), rawK: half ? take(TILE * D / 2) : 0, rawV: half ? take(TILE * DV / 2) : 0, ...pairAreas(c, take) });
for (let n = 0; n < all; n++) {
const scratch = scratchOf(take, 3 * FEW + FEW * 2 * up(DV, 8) + 2 * TILE);
list.push({ ...shared, block: take(WORDS), ...scratch, q: take(FEW * D), o: take(FEW * DV), lse: take(FEW), r: Math.floor(n / each), i0: n % each * FEW });
}
take(TILE * (Math.max(D, DV) + 1)); // the module checks that memory for a whole tile follows each offset
});
for (let b = 0; b < c.B; b++) for (let g = 0; g < c.G; g++) {
const s = sequence(c, b), parts = list.filter(w => w.i0 < s.n);
if (parts.length === 0) continue;
const whole = w => [b, g * c.group + w.r, w.i0, Math.min(FEW, s.n - w.i0)];
for (const w of parts) {
writeBlock(c, w, s, 0, s.m), writeScore(c, w, s, g * c.group + w.r);
load(w.q, c.q, ...whole(w));
if (c.carry) load(w.o, c.o, ...whole(w)), load(w.lse, c.lse, ...whole(w));
}
const [lo, hi] = seen(s, 0, s.n);
for (let j0 = Math.floor(lo / TILE) * TILE, flags = FIRST; !(flags & LAST); j0 += TILE, flags &= ~FIRST) {
const j1 = Math.max(j0, Math.min(j0 + TILE, hi)), copy = half ? raw : load;
if (j0 + TILE >= hi) flags |= LAST;
keys(copy, half ? shared.rawK : shared.k, c, c.k, b, g, j0, j1), keys(copy, half ? shared.rawV : shared.v, c, c.v, b, g, j0, j1);
if (half) call("decode_simd128_keys", parts[0].block, j0, j1);
for (const w of parts) {
const i1 = Math.min(w.i0 + FEW, s.n);
loadPairs(c, w, s, g * c.group + w.r, w.i0, i1, j0, j1);
call("decode_simd128_rows", w.block, w.i0, i1, j0, j1, flags);
}
}
for (const w of parts) {
store(w.o, c.o, ...whole(w));
if (c.lse) store(w.lse, c.lse, ...whole(w));
}
}
}
function biasSum(c) {
const t = c.dBias;
if (!t) return null;
const [B1, H1, N1] = t.shape, shared = B1 < c.B || H1 < c.H, wide = t.dtype === "f32" && (B1 < c.B ? c.B : 1) * (H1 < c.H ? c.H : 1) > 512;
const sum = new (wide ? Float64Array : Float32Array)(product(t.shape)), columns = N1 === 1 ? new Float64Array(c.M) : null;
const index = (b, h, i) => ((b % B1 * H1 + h % H1) * N1 + i % N1) * c.M;
const add = (to, from, j0, j1, value) => {
for (let j = j0; j < j1; j++) sum[to + j] = shared || t.dtype === "f32" ? sum[to + j] + value(from + j - j0) : value(from + j - j0);
};
return {
begin: () => columns?.fill(0),
tile(w, b, h, i0, i1, j0, j1) {
for (let i = i0, from = w.dBias / 4; i < i1; i++, from += TILE) {
if (columns) for (let j = j0; j < j1; j++) columns[j] += f32[from + j - j0];
else add(index(b, h, i), from, j0, j1, n => f32[n]);
}
},
end: (b, h, k0, k1) => columns && add(index(b, h, 0), k0, k0, k1, n => Math.fround(columns[n])),
write() {
for (let b = 0, from = 0; b < B1; b++) for (let h = 0; h < H1; h++) for (let i = 0; i < N1; i++, from += c.M) {
for (let j = 0, to = offset(t, b, h, i); j < c.M; j++) {
one[0] = sum[from + j];
if (t.bits) t.bits[to + j] = narrow[t.dtype](word[0]);
else t.data[to + j] = one[0];
}
}
},
};
}
function runBackward(c) {
const { D, DV } = c, d8 = up(D, 8), dv8 = up(DV, 8);
const pair = 5 * (D + DV) + (c.features ? 100 : 0), flops = c.kernel === "bwd_scalar" ? 5e5 : 1e7;
const tile = Math.min(STRIP, Math.max(8, Math.floor(flops / pair / STRIP / 8) * 8));
const owners = c.B * c.G / (c.dBias && c.dBias.shape[0] < c.B ? c.B : 1) / (c.dBias && c.dBias.shape[1] < c.H ? c.G : 1);
const chunk = Math.min(up(c.M, TILE), Math.max(TILE, Math.min(512, up(Math.floor(c.M * owners / 16), TILE))));
const w = plan(take => ({
block: take(WORDS), q: take(TILE * D), k: take(TILE * D), v: take(TILE * DV), o: take(TILE * DV), lse: take(TILE),
dO: take(TILE * DV), dLSE: take(TILE), dQ: take(TILE * D), ...pairAreas(c, take),
...scratchOf(take, chunk * (10 * d8 + 6 * dv8) + up(chunk / TILE, 4) + TILE * (4 * d8 + 2 * dv8) + 2 * TILE + 4 + 40 * TILE + TILE * STRIP),
})), rows = rowsOf(c), most = c.pairs ? TILE : MAX_ROWS, bias = biasSum(c);
const dQ = c.dQ.bits && chunk < c.M ? tensor("dQ", { data: new Float32Array(product(c.dQ.shape)), shape: c.dQ.shape }) : c.dQ;
for (const t of [dQ, c.dK, c.dV]) for (let b = 0; b < c.B; b++) fill(t, b, 0, t.shape[2], 0);
for (let k0 = 0; k0 < c.M; k0 += chunk) for (let b = 0; b < c.B; b++) for (let g = 0; g < c.G; g++) {
const s = sequence(c, b), k1 = Math.min(k0 + chunk, s.m);
if (k0 >= k1) continue;
writeBlock(c, w, s, k0, k1 - k0);
for (let j = k0; j < k1; j += TILE) stageKeys(c, w, b, g, j, Math.min(j + TILE, k1));
for (let h = g * c.group; s.n > 0 && h < (g + 1) * c.group; h++) {
writeScore(c, w, s, h);
bias?.begin();
for (let i0 = 0; i0 < s.n; i0 += tile) {
const i1 = Math.min(i0 + tile, s.n), n = i1 - i0, [lo, hi] = seen(s, i0, i1), from = Math.max(lo, k0), to = Math.min(hi, k1);
if (from >= to) continue;
load(w.q, c.q, b, h, i0, n), load(w.o, c.o, b, h, i0, n), load(w.dO, c.dO, b, h, i0, n), load(w.lse, c.lse, b, h, i0, n);
if (c.dLSE) load(w.dLSE, c.dLSE, b, h, i0, n);
else zero(w.dLSE, n);
if (k0 > lo) load(w.dQ, dQ, b, h, i0, n);
for (let j0 = k0 + Math.floor((from - k0) / TILE) * TILE, flags = k0 > lo ? FIRST | MORE : FIRST; !(flags & LAST); j0 += most, flags &= ~(FIRST | MORE)) {
const j1 = Math.min(j0 + most, to);
if (j1 === to) flags |= hi <= k1 ? LAST | SCALED : LAST;
loadPairs(c, w, s, h, i0, i1, j0, j1);
call(rows, w.block, i0, i1, j0, j1, flags);
bias?.tile(w, b, h, i0, i1, j0, j1);
}
store(w.dQ, dQ, b, h, i0, n);
}
bias?.end(b, h, k0, k1);
}
for (let j = k0; j < k1; j += TILE) {
const n = Math.min(TILE, k1 - j);
call("bwd_grads", w.block, j, j + n);
store(w.k, c.dK, b, g, j, n), store(w.v, c.dV, b, g, j, n);
}
}
if (dQ !== c.dQ) for (let b = 0; b < c.B; b++) for (let h = 0; h < c.H; h++) for (let r = 0; r < c.N; r++) {
load(w.dQ, dQ, b, h, r, 1), store(w.dQ, c.dQ, b, h, r, 1);
}
bias?.write();
}
function sinkGradients(c) {
const row = (at, t, b, h, i) => (load(at, t, b, h, i, 1), Array.from(f32.subarray(at / 4, at / 4 + c.DV)));
const w = plan(take => ({ o: take(c.DV) }));
for (let h = 0; h < c.H; h++) {
let sum = 0;
for (let b = 0; b < c.B && c.N > 0; b++) for (let i = 0, { n } = sequence(c, b); i < n; i++) {
const at = (b * c.H + h) * c.N + i, lse = c.lse.data[at], weight = Math.exp(c.sink.data[h] - lse);
if (lse === -Infinity || weight === 0) continue;
const o = row(w.o, c.o, b, h, i), dO = row(w.o, c.dO, b, h, i);
sum -= weight * (o.reduce((dot, x, d) => dot + x * dO[d], 0) - (c.dLSE ? c.dLSE.data[at] : 0));
}
c.dSink.data[h] = sum;
}
}
return {
memory,
forward(args) {
const c = check(args, "forward");
for (let b = 0; c.qLens && c.N > 0 && b < c.B; b++) {
fill(c.o, b, c.qLens[b], c.N, 0);
if (c.lse) fill(c.lse, b, c.qLens[b], c.N, -Infinity);
}
if (product(c.o.shape) > 0) (c.kernel === "decode_simd128" ? runDecode : runForward)(c);
return c.lse ? { o: c.o.given, lse: c.lse.data } : { o: c.o.given };
},
backward(args) {
const c = check(args, "backward");
if (product(c.dQ.shape) + product(c.dK.shape) > 0) runBackward(c);
if (c.dSink) sinkGradients(c);
return { dQ: c.dQ.given, dK: c.dK.given, dV: c.dV.given, ...c.dBias && { dBias: c.dBias.given }, ...c.dSink && { dSink: c.dSink.data } };
},
};
}
function sha256(bytes) {
const rotate = (x, n) => x >>> n | x << 32 - n, K = [], H = [];
for (let n = 2; K.length < 64; n++) {
let prime = true;
for (let d = 2; d * d <= n; d++) prime &&= n % d !== 0;
const part = x => (x - Math.floor(x)) * 2 ** 32 | 0;
if (prime && H.length < 8) H.push(part(n ** (1 / 2)));
if (prime) K.push(part(n ** (1 / 3)));
}
const view = bytes instanceof Uint8Array ? bytes : new Uint8Array(bytes), size = up(view.length + 9, 64), text = new DataView(new ArrayBuffer(size));
new Uint8Array(text.buffer).set(view);
text.setUint8(view.length, 0x80), text.setUint32(size - 4, view.length * 8), text.setUint32(size - 8, Math.floor(view.length / 2 ** 29));
const w = new Int32Array(64);
for (let at = 0; at < size; at += 64) {
let [a, b, c, d, e, f, g, h] = H;
for (let i = 0; i < 64; i++) {
const x = w[i - 15], y = w[i - 2];
w[i] = i < 16 ? text.getInt32(at + 4 * i) : w[i - 16] + (rotate(x, 7) ^ rotate(x, 18) ^ x >>> 3) + w[i - 7] + (rotate(y, 17) ^ rotate(y, 19) ^ y >>> 10);
const t1 = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + (e & f ^ ~e & g) + K[i] + w[i] | 0;
const t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + (a & b ^ a & c ^ b & c) | 0;
h = g, g = f, f = e, e = d + t1 | 0, d = c, c = b, b = a, a = t1 + t2 | 0;
}
for (const [i, x] of [a, b, c, d, e, f, g, h].entries()) H[i] = H[i] + x | 0;
}
return H.map(x => (x >>> 0).toString(16).padStart(8, "0")).join("");
}
return { SHA256, ProblemError, open, sha256 };
}
