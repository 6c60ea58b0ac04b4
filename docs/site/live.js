// This script shows the text of the sample. If the user selects a token, all tokens show
// how much weight the selected token gives to them. O and LSE come from the module. The
// weights of a row are computed when the row is selected, so the page never holds all
// weights.
"use strict";

(async () => {
	const { $, make } = flashkit, tokens = flashkit.sample.tokens;
	let p, x, head = 0, row = flashkit.sample.row;

	const shown = token => token.replace(/^##/, "");
	const words = i => {
		let text = shown(tokens[i]);
		for (let j = i; tokens[j].startsWith("##"); j--) text = shown(tokens[j - 1]) + text;
		for (let j = i + 1; tokens[j]?.startsWith("##"); j++) text += shown(tokens[j]);
		return text === shown(tokens[i]) ? `“${text}”` : `“${shown(tokens[i])}” of “${text}”`;
	};

	// weights computes row i of softmax(scale Q K^T) from Q, K and LSE.
	function weights(i) {
		const q = x.q.subarray((head * p.N + i) * p.D, (head * p.N + i + 1) * p.D), lse = x.lse[head * p.N + i];
		return Float32Array.from({ length: p.M }, (_, j) => {
			let dot = 0;
			for (let d = 0, k = (head * p.M + j) * p.D; d < p.D; d++) dot += q[d] * x.k[k + d];
			return Math.exp(dot * p.scale - lse);
		});
	}

	const list = $("tokens");
	let whole; // the element of the current word; no line break divides a word
	const buttons = tokens.map((token, i) => {
		const special = /^\[.*\]$/.test(token);
		const b = make("button", { type: "button", className: "token", tabIndex: -1 }, shown(token));
		if (token.startsWith("##")) b.classList.add("piece");
		if (/^[.,?]$/.test(token)) b.classList.add("stop");
		if (special) b.classList.add("special");
		b.addEventListener("pointerenter", () => show(i));
		b.addEventListener("focus", () => show(i));
		b.addEventListener("click", () => show(i, true));
		if (!b.matches(".piece,.stop")) list.append(whole = make("span", { className: "word" }), " ");
		whole.append(b);
		return b;
	});
	const bars = tokens.map((_, j) => {
		const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
		bar.setAttribute("x", j * 8 + 1), bar.setAttribute("width", 6);
		$("row").append(bar);
		return bar;
	});

	// show shades all tokens by the weight that token i gives to them. If say is true, a
	// screen reader also says the result.
	function show(i, say) {
		buttons[row].classList.remove("asks"), buttons[row].tabIndex = -1;
		row = i;
		buttons[row].classList.add("asks"), buttons[row].tabIndex = 0;
		// The first and the last token stand for no word. These two tokens get the weight
		// that no word gets.
		const w = weights(i), most = Math.max(...w.slice(1, -1)), part = j => Math.min(1, w[j] / most);
		for (let j = 0; j < p.M; j++) {
			buttons[j].style.setProperty("--share", `${Math.round(Math.sqrt(part(j)) * 60)}%`);
			const h = Math.max(.5, part(j) * 56);
			bars[j].setAttribute("y", 58 - h), bars[j].setAttribute("height", h);
			bars[j].classList.toggle("asks", j === i);
		}
		const top = [...w.keys()].sort((a, b) => w[b] - w[a]).slice(0, 4);
		const text = `${words(i)} attends to ${top.map(j => `${words(j)} ${(w[j] * 100).toFixed(0)} %`).join(", ")}.`;
		$("said").textContent = text;
		if (say || document.activeElement === buttons[i]) $("aloud").textContent = text;
		$("row").setAttribute("aria-label", `The ${p.M} weights of ${words(i)}, in the order of the text. ${text}`);
	}
	list.addEventListener("keydown", event => {
		const to = { ArrowRight: row + 1, ArrowDown: row + 1, ArrowLeft: row - 1, ArrowUp: row - 1, Home: 0, End: tokens.length - 1 }[event.key];
		if (to === undefined) return;
		event.preventDefault();
		buttons[Math.min(Math.max(to, 0), tokens.length - 1)].focus();
	});

	try {
		const engine = flashkit.engines[0], { module, checked } = await flashkit.load(engine);
		const { heads, dim, scale, sha256 } = flashkit.sample, n = tokens.length;
		const data = halves(await flashkit.unpack(flashkit.sample.data)), size = heads.length * n * dim;
		p = { B: 1, H: heads.length, G: heads.length, N: n, M: n, D: dim, DV: dim, first: -2 * n, last: 2 * n, scale };
		x = { q: data.subarray(0, size), k: data.subarray(size, 2 * size), v: data.subarray(2 * size), o: new Float32Array(size).fill(NaN), lse: new Float32Array(heads.length * n).fill(NaN) };
		const instance = flashkit.host.open(module, p), start = performance.now();
		instance.forward("simd128", x);
		const time = performance.now() - start, got = await flashkit.sha256(x.o);
		$("hash").textContent = engine.sha256;
		$("hash-checked").textContent = checked ? "checked here" : "not checked: this address is not a secure one";
		$("took").textContent = `${time.toFixed(1)} ms`;
		$("same").textContent = got === "" ? "" : got === sha256 ? "O has the same bits as in Go." : `O differs from that in Go: its SHA-256 is ${got}, want ${sha256}.`;
		$("same").classList.toggle("bad", got !== "" && got !== sha256);
		heads.forEach((number, i) => {
			const choice = make("input", { type: "radio", name: "head", id: `head${i}`, checked: i === head });
			choice.addEventListener("change", () => { head = i, show(row, true); });
			$("heads").append(make("label", { htmlFor: `head${i}` }, choice, ` head ${number}`));
		});
		show(row);
		$("live").dataset.state = "ready";
	} catch (error) {
		$("said").textContent = `This browser cannot run the module: ${error.message}`;
		$("live").dataset.state = "failed";
	}

	// halves converts float16 numbers to float32.
	function halves(bytes) {
		const view = new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 2);
		return Float32Array.from(view, h => {
			const e = h >> 10 & 31, m = h & 1023, sign = h >> 15 ? -1 : 1;
			return sign * (e === 0 ? m * 2 ** -24 : e === 31 ? (m ? NaN : Infinity) : (1 + m / 1024) * 2 ** (e - 15));
		});
	}
})();
