// The host of the modules. All that the page knows of their exports, and of the block of
// parameters that they read, is here. flashkitHost refers to nothing outside of itself:
// workers are made of its text, as a page that lies in a folder cannot load them.
"use strict";

function flashkitHost() {
	const MAGIC = 0x4b484c46, ABI = 3, WORDS = 48, TILE = 128; // rows of the stage, and keys of a block
	const FIRST = 1, LAST = 2, SCALED = 4;                     // flags of a call for rows
	const CODES = ["ok", "bad block", "bad version", "bad shape", "bad tensor", "bad scratch", "bad range", "bad feature"];
	const up = (n, to) => Math.ceil(n / to) * to;

	// tiles returns how many tiles of query rows a problem has. Each can be computed apart.
	const tiles = p => p.B * p.H * Math.ceil(p.N / TILE);

	// open makes an instance of a compiled module, with memory for one key/value head of the
	// problem {B, H, G, N, M, D, DV, first, last, scale}: row i sees the keys from i+first to
	// i+last. The arrays of a call are dense: [B][H][N][D] and so on. An area that nobody
	// has written reads NaN.
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

		// forward writes the rows of x.o and x.lse of the tiles [from, to).
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

		// backward writes x.dq, x.dk and x.dv from the o and lse of a forward pass.
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

// What the page's scripts share.
const flashkit = { host: flashkitHost(), engines: [], sample: null, vectors: null };

// unpack returns the bytes of a text in base64, decompressed.
flashkit.unpack = async text => {
	const packed = Uint8Array.from(atob(text), c => c.charCodeAt(0));
	const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
	return new Uint8Array(await new Response(stream).arrayBuffer());
};

// floats returns the view of bytes as float32. All data lies so, little-endian.
flashkit.floats = bytes => new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);

// sha256 returns the hash in hexadecimal digits, or "" where the browser computes none:
// it does so for files and for secure addresses.
flashkit.sha256 = async bytes => {
	if (!globalThis.crypto?.subtle) return "";
	const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
	return [...hash].map(b => b.toString(16).padStart(2, "0")).join("");
};

// load returns an engine's module, compiled, and its bytes. An engine is a row of
// data/engines.js. A browser that lacks an instruction of it says so here.
flashkit.load = engine => engine.loaded ??= (async () => {
	const bytes = await flashkit.unpack(engine.wasm), sha256 = await flashkit.sha256(bytes);
	if (sha256 && sha256 !== engine.sha256) throw Error(`${engine.name} has the SHA-256 ${sha256}, want ${engine.sha256}`);
	if (!WebAssembly.validate(bytes)) throw Error(`this browser cannot run ${engine.name}`);
	return { bytes, module: await WebAssembly.compile(bytes), checked: sha256 !== "" };
})();

flashkit.$ = id => document.getElementById(id);

// make returns an element with properties, attributes (those with a dash, and role) and children.
flashkit.make = (tag, properties = {}, ...children) => {
	const x = document.createElement(tag);
	for (const [name, value] of Object.entries(properties))
		if (name.includes("-") || name === "role") x.setAttribute(name, value);
		else x[name] = value;
	x.append(...children);
	return x;
};

// copy puts a text on the clipboard, or selects it in a field where the browser allows no more.
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
