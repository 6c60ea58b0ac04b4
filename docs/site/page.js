// This file has the functions that the scripts of the page share. data/flashkit.js has flashkitHost, the
// host of the WebAssembly modules: the text of backends/wasm/js/flashkit.js in a function.
"use strict";

// flashkit holds the functions and data that the scripts of the page share.
const flashkit = { host: flashkitHost(), engines: [], sample: null, vectors: null };

// unpack decodes a text in base64 and returns the decompressed bytes.
flashkit.unpack = async text => {
	const packed = Uint8Array.from(atob(text), c => c.charCodeAt(0));
	const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
	return new Uint8Array(await new Response(stream).arrayBuffer());
};

// numbers decodes a text with numbers of an array type. All first bytes come first, then all second bytes,
// and so on.
flashkit.numbers = async (type, text) => {
	const planes = await flashkit.unpack(text), width = type.BYTES_PER_ELEMENT, n = planes.length / width;
	return new type(Uint8Array.from(planes, (_, i) => planes[i % width * n + Math.floor(i / width)]).buffer);
};

// wide converts float16 or bfloat16 numbers to float32.
flashkit.wide = (type, bits) => Float32Array.from(bits, h => {
	const [shift, mask, bias] = type === "f16" ? [10, 31, 15] : [7, 255, 127], e = h >> shift & mask, m = (h & 2 ** shift - 1) / 2 ** shift, sign = h >> 15 ? -1 : 1;
	return sign * (e === 0 ? m * 2 ** (1 - bias) : e === mask ? (m ? NaN : Infinity) : (1 + m) * 2 ** (e - bias));
});

// tick returns the step of the clock in milliseconds. Browsers make their clocks coarse.
flashkit.tick = () => {
	if (!flashkit.step) {
		const start = performance.now();
		do flashkit.step = performance.now() - start; while (!flashkit.step);
	}
	return flashkit.step;
};

// time returns the time of a call of f in milliseconds. It repeats the call until the clock can tell the
// time, and returns the mean.
flashkit.time = f => {
	for (let count = 1, least = Math.min(500, Math.max(10, 20 * flashkit.tick())); ; count *= 2) {
		const start = performance.now();
		for (let n = 0; n < count; n++) f();
		const time = performance.now() - start;
		if (time >= least) return time / count;
	}
};

// load returns the compiled module of an engine, and the module's bytes. An engine is an
// element of data/engines.js. If the browser lacks an instruction of the module, load
// throws an error.
flashkit.load = engine => engine.loaded ??= (async () => {
	const bytes = await flashkit.unpack(engine.wasm), sha256 = flashkit.host.sha256(bytes);
	if (sha256 !== engine.sha256) throw Error(`${engine.name} has the SHA-256 ${sha256}, want ${engine.sha256}`);
	if (!WebAssembly.validate(bytes)) throw Error(`this browser cannot run ${engine.name}`);
	return { bytes, module: await WebAssembly.compile(bytes) };
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
