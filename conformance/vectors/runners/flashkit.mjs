// flashkit's browser module under Node, both passes: node flashkit.mjs FOLDER. It reads the files with a few lines of
// its own, so it is also the example of a program.
import fs from "node:fs";
import path from "node:path";
import process from "node:process";

const here = path.dirname(new URL(import.meta.url).pathname), folder = process.argv[2];
const wasm = path.join(here, "../../../backends/wasm"), { load } = await import(path.join(wasm, "js/flashkit.js"));
const c = JSON.parse(fs.readFileSync(path.join(folder, "case.json")));
const known = "gqa v_dim scale dlse window top_left shift softcap alibi bias mask sink dropout origin ragged mixed".split(" ");
const missing = c.features.filter(f => !known.includes(f));
if (missing.length > 0) {
	console.log("no " + missing.join(", "));
	process.exit(77);
}

const x = read(fs.readFileSync(path.join(folder, "inputs.safetensors"))), four = t => t && { data: t.data, dtype: t.dtype, shape: t.shape };
const a = { q: four(x.q), k: four(x.k), v: four(x.v), bias: four(x.bias), mask: four(x.mask), slopes: x.slopes?.data, sink: x.sink?.data,
	window: [c.left ?? Infinity, c.right ?? Infinity], topLeft: c.top_left, shift: c.shift, scale: c.scale };
if (c.softcap) a.softcap = c.softcap;
if (c.dropout) Object.assign(a, { dropout: c.dropout, seed: BigInt(c.seed) });
if (c.origin) a.origin = Object.fromEntries(["batch", "head", "row", "key"].map((name, i) => [name, c.origin[i]]));
if (x.q_lens) a.qLens = x.q_lens.data;
if (x.kv_lens) a.kvLens = x.kv_lens.data;
for (const name in a) if (a[name] === undefined) delete a[name];

const attention = await load(fs.readFileSync(path.join(wasm, "kernel/kernel.wasm"))), { o, lse } = attention.forward({ ...a, lse: true }), out = { o, lse };
if (c.outputs.includes("dq")) Object.assign(out, attention.backward({ ...a, o, lse, dO: four(x.do), ...(x.dlse && { dLSE: x.dlse.data }), ...(a.bias && { dBias: true }), ...(a.sink && { dSink: true }) }));
const shapes = { lse: [c.batch, c.heads, c.q_len], dsink: [c.heads] };
const named = Object.fromEntries(Object.entries(out).map(([name, t]) => [name.toLowerCase(), t]));
write(path.join(folder, "outputs.safetensors"), c.outputs.map(name => ({ name, shape: shapes[name] ?? named[name].shape, data: named[name].data ?? named[name] })));

function read(blob) {
	const size = Number(blob.readBigUInt64LE(0)), tensors = {};
	const types = { F32: [Float32Array, "f32"], F16: [Uint16Array, "f16"], BF16: [Uint16Array, "bf16"], I32: [Int32Array], BOOL: [Uint8Array] };
	for (const [name, { dtype, shape, data_offsets: [from, to] }] of Object.entries(JSON.parse(blob.subarray(8, 8 + size)))) {
		if (name === "__metadata__") continue;
		const bytes = Uint8Array.from(blob.subarray(8 + size + from, 8 + size + to));
		tensors[name] = { data: new types[dtype][0](bytes.buffer), dtype: types[dtype][1], shape };
	}
	return tensors;
}

function write(file, tensors) {
	const header = {}, parts = [];
	let at = 0;
	for (const { name, shape, data } of tensors) {
		const dtype = data instanceof Float32Array ? "F32" : c.dtype.toUpperCase(), bytes = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
		header[name] = { dtype, shape, data_offsets: [at, at += bytes.length] };
		parts.push(bytes);
	}
	const text = Buffer.from(JSON.stringify(header)), size = Buffer.alloc(8);
	size.writeBigUInt64LE(BigInt(text.length));
	fs.writeFileSync(file, Buffer.concat([size, text, ...parts]));
}
