// This script shows the text of the sample. If the user selects a token, all tokens show
// how much weight the selected token gives to them. O and LSE come from the module. The
// weights of a row are computed when the row is selected, so the page never holds all
// weights.
"use strict";

(async () => {
	const { $, make } = flashkit;
	let host, p, x, result, own = false, tokens = flashkit.sample.tokens, head = 0, row = 0, buttons = [], bars = [];

	const shown = token => token.replace(/^##/, "");
	const words = i => {
		if (own) return `row ${tokens[i]}`;
		let text = shown(tokens[i]);
		for (let j = i; tokens[j].startsWith("##"); j--) text = shown(tokens[j - 1]) + text;
		for (let j = i + 1; tokens[j]?.startsWith("##"); j++) text += shown(tokens[j]);
		return text === shown(tokens[i]) ? `“${text}”` : `“${shown(tokens[i])}” of “${text}”`;
	};

	// weights computes row i of the softmax from Q, K and LSE.
	function weights(i) {
		const { causal, window = [Infinity, causal ? 0 : Infinity], softcap, slopes } = p.call, lse = result.lse[head * p.N + i], group = Math.floor(head / (p.H / p.G));
		const q = x.q.data.subarray((head * p.N + i) * p.D, (head * p.N + i + 1) * p.D);
		return Float32Array.from({ length: p.M }, (_, j) => {
			if (j < i - window[0] || j > i + window[1]) return 0;
			let s = 0;
			for (let d = 0, k = (group * p.M + j) * p.D; d < p.D; d++) s += q[d] * x.k.data[k + d];
			s *= p.scale;
			if (softcap) s = softcap * Math.tanh(s / softcap);
			if (slopes) s -= slopes[head] * Math.abs(j - i);
			return Math.exp(s - lse);
		});
	}

	flashkit.weights = weights; // the page's tests read it

	// draw makes a button and a bar for each token.
	const list = $("tokens");
	function draw() {
		list.replaceChildren(), $("row").replaceChildren(), $("row").setAttribute("viewBox", `0 0 ${8 * tokens.length} 60`);
		let whole; // the element of the current word; no line break divides a word
		buttons = tokens.map((token, i) => {
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
		bars = tokens.map((_, j) => {
			const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
			bar.setAttribute("x", j * 8 + 1), bar.setAttribute("width", 6);
			$("row").append(bar);
			return bar;
		});
	}

	// show shades all tokens by the weight that token i gives to them. If say is true, a
	// screen reader also says the result.
	function show(i, say) {
		buttons[row].classList.remove("asks"), buttons[row].tabIndex = -1;
		row = i;
		buttons[row].classList.add("asks"), buttons[row].tabIndex = 0;
		// In the sample, the first and the last token stand for no word. These two tokens get the weight that
		// no word gets.
		const w = weights(i), shared = own ? w : w.slice(1, -1), most = shared.reduce((a, b) => Math.max(a, b), 0) || 1, part = j => Math.min(1, w[j] / most);
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

	// options returns the options of the next call, and their key in the sample's hashes.
	function options() {
		const causal = $("causal").checked, window = +$("window").value, softcap = +$("softcap").value, alibi = $("alibi").checked, call = {};
		if (window) call.window = [window, causal ? 0 : window];
		else if (causal) call.causal = true;
		if (softcap) call.softcap = softcap;
		if (alibi) call.slopes = Float32Array.from({ length: p.H }, (_, h) => 2 ** (-8 * (h + 1) / p.H));
		return { call, key: [+causal, window, softcap, +alibi].join() };
	}

	// compute computes O and LSE with the chosen options.
	function compute(say) {
		try {
			const { call, key } = options(), args = { ...x, ...call, kernel: "fwd_simd128", lse: true };
			p.call = call;
			result = host.forward(args);
			const time = flashkit.time(() => host.forward({ ...args, o: result.o, lse: result.lse })), want = own ? undefined : flashkit.sample.outputs[key];
			const got = flashkit.host.sha256(new Uint8Array(result.o.data.buffer));
			$("took").textContent = `${time < .1 ? time.toFixed(3) : time.toFixed(1)} ms`;
			$("same").textContent = !want ? "" : got.startsWith(want) ? "O has the same bits as in Go." : `O differs from that in Go: its SHA-256 is ${got}, want ${want}….`;
			$("same").classList.toggle("bad", want !== undefined && !got.startsWith(want));
			show(row, say);
			$("live").dataset.state = "ready";
		} catch (error) {
			$("said").textContent = `This browser cannot run the module: ${error.message}`;
			$("live").dataset.state = "failed";
		}
	}

	// use shows tensors: q, k and v are float32, [1][H][N][D], and words are the names of the rows.
	function use(q, k, v, words, heads) {
		const [, H, N, D] = q.shape;
		p = { H, G: k.shape[1], N, M: N, D, scale: Math.fround(1 / Math.sqrt(D)) };
		x = { q, k, v }, tokens = words, head = 0, row = own ? N - 1 : flashkit.sample.row;
		draw();
		$("heads").replaceChildren($("heads").firstElementChild, ...heads.map((number, i) => {
			const choice = make("input", { type: "radio", name: "head", id: `head${i}`, checked: i === head });
			choice.addEventListener("change", () => { head = i, show(row, true); });
			return make("label", { htmlFor: `head${i}` }, choice, ` head ${number}`);
		}));
		$("head-count").textContent = H, $("pairs").textContent = `${N} × ${N}`;
		compute();
	}

	$("own").addEventListener("change", async () => {
		try {
			const file = $("own").files[0];
			if (!file) return;
			const { q, k, v } = flashkit.attentionOf(new Uint8Array(await file.arrayBuffer()));
			host.forward({ q, k, v }); // checks the shapes
			own = true;
			use(q, k, v, Array.from({ length: q.shape[2] }, (_, i) => String(i)), Array.from({ length: q.shape[1] }, (_, i) => i));
			$("own-said").textContent = `${file.name}: ${q.shape[1]} query heads, ${k.shape[1]} KV heads, ${q.shape[2]} rows, head dim ${q.shape[3]}.`;
			$("save").hidden = false;
		} catch (error) {
			$("own-said").textContent = `The file was not used: ${error.message}`;
		}
	});
	$("save").addEventListener("click", () => {
		const url = URL.createObjectURL(new Blob([flashkit.encode({ o: result.o, lse: { data: result.lse, shape: result.o.shape.slice(0, 3) } })]));
		make("a", { href: url, download: "attention.safetensors" }).click();
		setTimeout(() => URL.revokeObjectURL(url), 1000);
	});
	for (const id of ["causal", "window", "softcap", "alibi"]) $(id).addEventListener("change", () => compute(true));

	try {
		const engine = flashkit.engines[0], { module } = await flashkit.load(engine), { dim, data } = flashkit.sample, n = tokens.length;
		host = flashkit.host.open(module);
		$("hash").textContent = engine.sha256, $("hash-checked").textContent = "checked here";
		const numbers = flashkit.wide("f16", await flashkit.numbers(Uint16Array, data)), size = numbers.length / 3;
		const part = i => ({ data: numbers.subarray(i * size, (i + 1) * size), shape: [1, flashkit.sample.heads.length, n, dim] });
		use(part(0), part(1), part(2), tokens, flashkit.sample.heads);
	} catch (error) {
		$("said").textContent = `This browser cannot run the module: ${error.message}`;
		$("live").dataset.state = "failed";
	}
})();
