// This script reads and writes files of tensors in the format safetensors: the length of the header as 8
// little-endian bytes, a JSON header, and the numbers.
"use strict";

// decode returns the tensors of a file by name, as float32 with their shapes. It refuses an incomplete file,
// and ignores tensors of types other than F32, F16 and BF16.
flashkit.decode = bytes => {
	const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength), size = bytes.length < 8 ? NaN : Number(view.getBigUint64(0, true));
	if (!(size <= bytes.length - 8)) throw Error("it is not a complete safetensors file");
	let header;
	try {
		header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes.subarray(8, 8 + size)));
	} catch {
		throw Error("its header is not JSON");
	}
	const tensors = new Map(), types = { F32: [4, b => new Float32Array(b)], F16: [2, b => flashkit.wide("f16", new Uint16Array(b))], BF16: [2, b => flashkit.wide("bf16", new Uint16Array(b))] };
	for (const [name, t] of Object.entries(header ?? {})) {
		if (name === "__metadata__" || !Object.hasOwn(types, t?.dtype)) continue;
		const [width, numbers] = types[t.dtype], { shape, data_offsets: [from, to] = [] } = t, count = Array.isArray(shape) && shape.every(n => Number.isSafeInteger(n) && n >= 0) ? shape.reduce((a, b) => a * b, 1) : NaN;
		if (!(Number.isSafeInteger(from) && from >= 0 && to <= bytes.length - 8 - size && to - from === count * width)) throw Error(`${name}: its shape and its number of bytes disagree`);
		tensors.set(name, { shape, data: numbers(bytes.slice(8 + size + from, 8 + size + to).buffer) });
	}
	return tensors;
};

// attentionOf returns q, k and v of a file: [heads][rows][dim], or the same after a batch of 1.
flashkit.attentionOf = bytes => {
	const tensors = flashkit.decode(bytes), list = {};
	for (const name of ["q", "k", "v"]) {
		const t = tensors.get(name);
		if (!t) throw Error(`it has no tensor ${name} of F32, F16 or BF16`);
		const shape = t.shape.length === 3 ? [1, ...t.shape] : t.shape;
		if (shape.length !== 4 || shape[0] !== 1) throw Error(`${name} has the shape [${t.shape}], want [heads, rows, dim] or a batch of 1`);
		list[name] = { data: t.data, shape };
	}
	const [, H, N, D] = list.q.shape;
	if (N < 1 || N > 512 || H < 1 || H > 16) throw Error(`q has ${H} heads and ${N} rows; the page shows up to 16 heads and 512 rows`);
	if (list.k.shape[2] !== N || list.k.shape[3] !== D) throw Error(`k has the shape [${list.k.shape}], want the rows and the dim of q, [${list.q.shape}]`);
	return list;
};

// encode returns a file with float32 tensors.
flashkit.encode = tensors => {
	const header = {}, parts = [];
	let at = 0;
	for (const [name, { data, shape }] of Object.entries(tensors)) {
		header[name] = { dtype: "F32", shape, data_offsets: [at, at += data.byteLength] };
		parts.push(data);
	}
	let text = JSON.stringify(header);
	text += " ".repeat((8 - text.length % 8) % 8);
	return new Blob([new BigUint64Array([BigInt(text.length)]), text, ...parts]);
};
