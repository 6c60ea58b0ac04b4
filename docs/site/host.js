// This file is the host of the WebAssembly modules. Only this file depends on the exports
// of the modules and on the block of parameters that the modules read. flashkitHost refers
// to nothing outside of itself, because race.js makes workers from the text of this
// function. A page that was opened from a folder cannot load the script of a worker.
"use strict";

function flashkitHost() {
	const MAGIC = 0x4b484c46, ABI = 3, WORDS = 48, TILE = 128; // rows of the stage, and keys of a block
	const FIRST = 1, LAST = 2, SCALED = 4;                     // flags of a call for rows
	const CODES = ["ok", "bad block", "bad version", "bad shape", "bad tensor", "bad scratch", "bad range", "bad feature"];
	const up = (n, to) => Math.ceil(n / to) * to;

	// tiles returns the number of tiles of query rows that a problem has, in all heads.
	// Each tile can be computed separately.
	const tiles = p => p.B * p.H * Math.ceil(p.N / TILE);

	// open makes an instance of a compiled module, with memory for one key/value head of
	// the problem p. Row i of p sees the keys from i+p.first to i+p.last. The arrays of a
	// call are dense: q is [B][H][N][D], and so on. Before the first write, all numbers in
	// this memory are NaN.
	function open(module, p, backward) {
		const { exports } = new WebAssembly.Instance(module, {});
		if (exports.abi() !== ABI) throw Error(`the ABI of the module is ${exports.abi()}, want ${ABI}`);
		const d8 = up(p.D, 8), dv8 = up(p.DV, 8), keys = up(p.M, TILE);
		let at = exports.__heap_base.value;
		const take = floats => {
			const here = up(at, 64);
			at = here + 4 * floats;
			return here;
		};
		const block = take(WORDS), q = take(TILE * p.D), k = take(TILE * p.D), v = take(TILE * p.DV), o = take(TILE * p.DV), lse = take(TILE);
		const dout = take(TILE * p.DV), dlse = take(TILE), dq = take(TILE * p.D);
		const bytes = 4 * (keys * (backward ? 10 : 1) * (d8 + dv8) + keys + TILE * 6 * (d8 + dv8) + TILE * TILE * 3);
		const scratch = take(bytes / 4);
		exports.memory.grow(Math.max(0, Math.ceil((at - exports.memory.buffer.byteLength) / 65536)));
		const f32 = new Float32Array(exports.memory.buffer), words = new Uint32Array(exports.memory.buffer, block, WORDS);
		f32.fill(NaN, q / 4, at / 4);
		words.set([MAGIC, ABI, p.D, p.DV, 0, p.M, p.first, p.last, 0, q, k, v, o, lse, dout, dlse, dq, scratch, bytes]);
		f32[block / 4 + 8] = p.scale;

		const put = (to, x, row, rows, dim) => f32.set(x.subarray(row * dim, (row + rows) * dim), to / 4);
		const get = (from, x, row, rows, dim) => x.set(f32.subarray(from / 4, from / 4 + rows * dim), row * dim);
		const call = (name, ...args) => {
			const code = exports[name](block, ...args);
			if (code) throw Error(`${name}(${args.join(", ")}): ${CODES[code] ?? "code " + code}`);
		};
		const stageKeys = (name, x, g) => {
			for (let j = 0; j < p.M; j += TILE) {
				const n = Math.min(TILE, p.M - j);
				put(k, x.k, g * p.M + j, n, p.D);
				put(v, x.v, g * p.M + j, n, p.DV);
				call(name, j, j + n);
			}
		};
		const group = p.H / p.G, perHead = Math.ceil(p.N / TILE);

		// forward computes the rows of x.o and x.lse that are in the tiles [from, to).
		function forward(variant, x, from = 0, to = tiles(p)) {
			for (let n = from, staged = -1; n < to; n++) {
				const head = Math.floor(n / perHead), i = n % perHead * TILE, rows = Math.min(TILE, p.N - i), g = Math.floor(head / group);
				if (g !== staged) stageKeys(`fwd_${variant}_keys`, x, g);
				staged = g;
				put(q, x.q, head * p.N + i, rows, p.D);
				call(`fwd_${variant}_rows`, i, i + rows, 0, p.M, FIRST | LAST);
				get(o, x.o, head * p.N + i, rows, p.DV);
				get(lse, x.lse, head * p.N + i, rows, 1);
			}
		}

		// backward computes x.dq, x.dk and x.dv. It reads x.o and x.lse, the results of a
		// forward pass.
		function backward(variant, x) {
			for (let g = 0; g < p.B * p.G; g++) {
				stageKeys(`bwd_${variant}_keys`, x, g);
				for (let head = g * group; head < (g + 1) * group; head++) {
					for (let i = 0; i < p.N; i += TILE) {
						const rows = Math.min(TILE, p.N - i), row = head * p.N + i;
						put(q, x.q, row, rows, p.D), put(o, x.o, row, rows, p.DV), put(dout, x.do, row, rows, p.DV), put(lse, x.lse, row, rows, 1);
						if (x.dlse) put(dlse, x.dlse, row, rows, 1);
						else f32.fill(0, dlse / 4, dlse / 4 + rows);
						f32.fill(0, dq / 4, dq / 4 + rows * p.D);
						call(`bwd_${variant}_rows`, i, i + rows, 0, p.M, FIRST | LAST | SCALED);
						get(dq, x.dq, row, rows, p.D);
					}
				}
				for (let j = 0; j < p.M; j += TILE) {
					const n = Math.min(TILE, p.M - j);
					call("bwd_grads", j, j + n);
					get(k, x.dk, g * p.M + j, n, p.D), get(v, x.dv, g * p.M + j, n, p.DV);
				}
			}
		}
		return { forward, backward };
	}
	return { open, tiles };
}

// flashkit holds the functions and data that the scripts of the page share.
const flashkit = { host: flashkitHost(), engines: [], sample: null, vectors: null };

// unpack decodes a text in base64 and returns the decompressed bytes.
flashkit.unpack = async text => {
	const packed = Uint8Array.from(atob(text), c => c.charCodeAt(0));
	const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
	return new Uint8Array(await new Response(stream).arrayBuffer());
};

// floats returns a view of bytes as float32 numbers. All data is little-endian.
flashkit.floats = bytes => new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);

// sha256 returns the hash in hexadecimal digits, or "" if the browser computes no hashes. A
// browser computes hashes only on pages from files or secure addresses.
flashkit.sha256 = async bytes => {
	if (!globalThis.crypto?.subtle) return "";
	const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
	return [...hash].map(b => b.toString(16).padStart(2, "0")).join("");
};

// load returns the compiled module of an engine, and the module's bytes. An engine is an
// element of data/engines.js. If the browser lacks an instruction of the module, load
// throws an error.
flashkit.load = engine => engine.loaded ??= (async () => {
	const bytes = await flashkit.unpack(engine.wasm), sha256 = await flashkit.sha256(bytes);
	if (sha256 && sha256 !== engine.sha256) throw Error(`${engine.name} has the SHA-256 ${sha256}, want ${engine.sha256}`);
	if (!WebAssembly.validate(bytes)) throw Error(`this browser cannot run ${engine.name}`);
	return { bytes, module: await WebAssembly.compile(bytes), checked: sha256 !== "" };
})();

flashkit.$ = id => document.getElementById(id);

// make returns an element with the given children. role and each name with a dash are set
// as attributes. All other names are set as properties.
flashkit.make = (tag, properties = {}, ...children) => {
	const x = document.createElement(tag);
	for (const [name, value] of Object.entries(properties))
		if (name.includes("-") || name === "role") x.setAttribute(name, value);
		else x[name] = value;
	x.append(...children);
	return x;
};

// copy puts a text on the clipboard. If the browser does not allow this, copy shows the
// text in a field and selects it there.
flashkit.copy = async (button, text) => {
	const before = button.dataset.name ??= button.textContent;
	try {
		await navigator.clipboard.writeText(text);
		button.textContent = "Copied";
	} catch {
		let field = button.nextElementSibling;
		if (!field?.matches("textarea")) button.after(field = flashkit.make("textarea", { readOnly: true, rows: 6, "aria-label": "text to copy" }));
		field.value = text;
		field.select();
	}
	setTimeout(() => button.textContent = before, 2000);
};
