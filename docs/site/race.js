// This script measures the speed of the engines and of onnxruntime-web. All take turns, and
// each runs in its own workers.
"use strict";

// raceWorker is the script of a worker that runs an engine. In the worker, the text of
// flashkitHost precedes the text of raceWorker.
function raceWorker() {
	let host, x, calls, shared;
	const does = {
		// open prepares the calls for the tiles [from, to) of query rows, counted through all heads.
		open(m) {
			const { H, N, D } = m.problem, tiles = Math.ceil(N / m.tile);
			const rows = (data, from, n) => ({ data: data.subarray(from * D, (from + n) * D), shape: [1, 1, n, D] });
			host = flashkitHost().open(m.bytes), { x, shared } = m, calls = [];
			for (let h = 0; h < H; h++) {
				const i0 = Math.max(m.from - h * tiles, 0) * m.tile, n = Math.min((m.to - h * tiles) * m.tile, N) - i0;
				if (n > 0) calls.push({ q: rows(x.q, h * N + i0, n), k: rows(x.k, h * N, N), v: rows(x.v, h * N, N), o: rows(x.o, h * N + i0, n), kernel: "fwd_simd128" });
			}
		},
		run({ count }) {
			const start = performance.now();
			for (let i = 0; i < count; i++) for (const call of calls) host.forward(call);
			return performance.now() - start;
		},
		output: () => x.o,
	};
	onmessage = ({ data }) => {
		try {
			const result = does[data.does](data);
			// Without shared memory, the answer to a call includes the part of O that this
			// worker computed.
			postMessage({ result, part: data.does === "run" && !shared ? x.o.slice(data.part[0], data.part[1]) : null });
		} catch (error) {
			postMessage({ error: String(error.message ?? error) });
		}
	};
}

(() => {
	const { $, make } = flashkit, TILE = 128, ROUND = 250, ROUNDS = 5, WARM = 500;
	const isolated = globalThis.crossOriginIsolated === true, cores = navigator.hardwareConcurrency || 1;
	const ort = document.querySelector("meta[name=onnxruntime-web]").content, version = document.querySelector("meta[name=onnxruntime-web]").dataset.version;
	let stop = false, results = [], setting = "";

	// ask sends a message to a worker and returns the worker's answer.
	const ask = (worker, message) => new Promise((done, fail) => {
		worker.onmessage = ({ data }) => data.error ? fail(Error(data.error)) : done(data);
		worker.onerror = event => fail(Error(event.message || "the worker could not be loaded"));
		worker.postMessage(message);
	});

	const ours = (engine, threads) => async (p, x) => {
		const { bytes } = await flashkit.load(engine);
		const text = `"use strict";\n${flashkitHost}\n(${raceWorker})();`, url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
		const workers = Array.from({ length: threads }, () => new Worker(url)), all = p.H * Math.ceil(p.N / TILE);
		const cut = i => Math.floor(all * i / threads);
		const parts = workers.map((_, i) => [cut(i), cut(i + 1)].map(n => p.H * p.N * p.DV * n / all)); // every tile has the same number of rows
		await Promise.all(workers.map((w, i) => ask(w, { does: "open", bytes, problem: p, x, tile: TILE, from: cut(i), to: cut(i + 1), shared: isolated })));
		const o = x.o;
		return {
			async run(count) {
				if (threads === 1) return (await ask(workers[0], { does: "run", count, part: [0, 0] })).result;
				const start = performance.now();
				for (let n = 0; n < count; n++) {
					const answers = await Promise.all(workers.map((w, i) => ask(w, { does: "run", count: 1, part: parts[i] })));
					if (!isolated) answers.forEach(({ part }, i) => o.set(part, parts[i][0]));
				}
				return performance.now() - start;
			},
			output: async () => threads === 1 ? (await ask(workers[0], { does: "output" })).result : o,
			close: () => (workers.forEach(w => w.terminate()), URL.revokeObjectURL(url)),
		};
	};

	const theirs = threads => async (p, x) => {
		const worker = new Worker("raceort.js", { type: "module" });
		await ask(worker, { does: "open", path: new URL(ort, location.href).href, threads, problem: p, x });
		return {
			run: async count => (await ask(worker, { does: "run", count })).result,
			output: async () => (await ask(worker, { does: "output" })).result,
			close: () => worker.terminate(),
		};
	};

	// racers are the entries of the list of competitors. Each engine of data/engines.js has
	// one entry with one worker. On several cores, it also has one entry with a worker per
	// core.
	const racers = [];
	for (const engine of flashkit.engines) {
		racers.push({ engine, name: `${engine.name}, 1 worker`, about: engine.about, color: engine.color, open: ours(engine, 1), on: true });
		if (cores > 1) racers.push({ engine, name: `${engine.name}, ${cores} workers`, about: isolated ? "sharing memory" : "with copies: this address sends no headers for shared memory", color: engine.color, open: ours(engine, cores), hollow: true, on: true });
	}
	if (location.protocol !== "file:") {
		const size = "fetches 14 MB from this site when the race starts";
		racers.push({ name: `onnxruntime-web ${version}, 1 thread`, about: size, color: 1, open: theirs(1) });
		if (cores > 1 && isolated) racers.push({ name: `onnxruntime-web ${version}, ${cores} threads`, about: size, color: 1, open: theirs(cores), hollow: true });
	}
	racers.forEach((r, i) => {
		r.box = make("input", { type: "checkbox", id: `racer${i}`, checked: r.on === true });
		const about = make("span", { className: "dim" }, ` ${r.about}`);
		$("racers").append(make("li", { className: `c${r.color}` }, make("label", { htmlFor: `racer${i}` }, r.box, make("b", {}, ` ${r.name}`), about)));
		if (r.engine) flashkit.load(r.engine).catch(error => {
			r.box.checked = false, r.box.disabled = true;
			about.textContent = ` left out: ${error.message}`;
		});
	});
	if (location.protocol === "file:") $("racers").append(make("li", { className: "dim" }, "onnxruntime-web loads from an address only, not from a folder: make site-serve."));

	const median = sorted => sorted.length % 2 ? sorted[sorted.length >> 1] : (sorted[sorted.length / 2 - 1] + sorted[sorted.length / 2]) / 2;
	const at = (sorted, share) => sorted[Math.round((sorted.length - 1) * share)];
	function inputs(p) {
		const array = n => new Float32Array(isolated ? new SharedArrayBuffer(4 * n) : n);
		const x = { q: array(p.H * p.N * p.D), k: array(p.H * p.M * p.D), v: array(p.H * p.M * p.DV), o: array(p.H * p.N * p.DV), lse: array(p.H * p.N) };
		let state = 1;
		for (const name of ["q", "k", "v"]) for (let i = 0; i < x[name].length; i++) {
			state = Math.imul(state, 1664525) + 1013904223 >>> 0;
			x[name][i] = (state >>> 8) / (1 << 23) - 1;
		}
		return x;
	}

	// measure calls a racer for the given time, and returns times of a call. Each is the mean of r.count calls.
	// measure doubles this number until the clock can tell the time of the calls.
	async function measure(r, milliseconds) {
		const times = [];
		for (const end = performance.now() + milliseconds; performance.now() < end || times.length < 3;) {
			const time = await r.run(r.count);
			if (time < 10 * flashkit.tick()) r.count *= 2;
			else times.push(time / r.count);
		}
		return times;
	}

	async function race() {
		const n = +$("length").value, d = +$("dim").value, h = +$("race-heads").value;
		const p = { B: 1, H: h, G: h, N: n, M: n, D: d, DV: d, scale: 1 / Math.sqrt(d) };
		const flops = 4 * n * n * d * h, entered = racers.filter(r => r.box.checked), open = [];
		setting = `${h === 1 ? "1 head" : h + " heads"}, ${n} rows and keys, head dim ${d}, float32, forward`;
		results = entered.map(r => ({ name: r.name, color: r.color, hollow: r.hollow, times: [] }));
		try {
			for (const [i, r] of entered.entries()) {
				$("race-state").textContent = `Starting ${r.name}.`;
				open.push({ ...await r.open(p, inputs(p)), count: 1 });
				await measure(open[i], WARM); // so that browsers first optimize the code that runs often
			}
			for (let round = 0; round < ROUNDS && !stop; round++) {
				for (const [i, o] of open.entries()) {
					if (stop) break;
					$("race-state").textContent = `Round ${round + 1} of ${ROUNDS}: ${results[i].name}.`;
					results[i].times.push(...await measure(o, ROUND));
					results[i].count = o.count;
					draw(flops);
				}
			}
			const first = await open[0]?.output();
			for (const [i, o] of open.entries()) {
				const other = await o.output();
				results[i].apart = first.reduce((most, v, e) => Math.max(most, Math.abs(v - other[e])), 0);
				if (other.some(Number.isNaN) || !(results[i].apart < 1e-4)) throw Error(`the O of ${results[i].name} differs from that of ${results[0].name} by ${results[i].apart}`);
			}
			draw(flops);
			$("race-state").textContent = stop ? "Stopped." : `Done: ${setting}.`;
			return !stop;
		} finally {
			for (const o of open) o.close();
		}
	}

	const svg = (tag, attributes, text) => {
		const x = document.createElementNS("http://www.w3.org/2000/svg", tag);
		for (const [name, value] of Object.entries(attributes)) x.setAttribute(name, value);
		if (text !== undefined) x.textContent = text;
		return x;
	};
	const milliseconds = t => `${t.toPrecision(3)} ms`;

	// draw shows the times so far: a bar to the median, a line from the 10th to the 90th
	// percentile, and dots for single calls.
	function draw(flops) {
		const rows = results.filter(r => r.times.length).map(r => {
			const sorted = [...r.times].sort((a, b) => a - b);
			return { ...r, sorted, median: median(sorted), low: at(sorted, .1), high: at(sorted, .9) };
		});
		if (rows.length === 0) return;
		const plot = $("plot"), W = 360, ROW = 42, most = Math.max(...rows.map(r => r.high)) * 1.08, X = t => Math.min(t / most, 1) * W, first = rows[0].median;
		plot.replaceChildren();
		plot.setAttribute("viewBox", `0 0 ${W} ${rows.length * ROW + 16}`);
		rows.forEach((r, i) => {
			const y = i * ROW, g = svg("g", { class: `c${r.color}${r.hollow ? " hollow" : ""}` });
			g.append(svg("text", { x: 0, y: y + 12 }, r.name), svg("text", { x: W, y: y + 12, class: "end" }, `${milliseconds(r.median)} · ${(flops / r.median / 1e6).toFixed(1)} GFLOP/s`));
			g.append(svg("rect", { class: "bar", x: 0, y: y + 18, width: Math.max(1, X(r.median)), height: 14, rx: 2 }));
			for (const t of r.sorted.filter((_, e) => e % Math.ceil(r.sorted.length / 60) === 0)) g.append(svg("circle", { cx: X(t), cy: y + 25, r: 1.6 }));
			g.append(svg("path", { class: "spread", d: `M${X(r.low)} ${y + 25}H${X(r.high)}M${X(r.low)} ${y + 21}v8M${X(r.high)} ${y + 21}v8` }));
			plot.append(g);
		});
		plot.append(svg("text", { x: 0, y: rows.length * ROW + 10, class: "dim" }, "0"), svg("text", { x: W, y: rows.length * ROW + 10, class: "dim end" }, milliseconds(most)));
		plot.setAttribute("aria-label", `Time of a call, ${setting}: ${rows.map(r => `${r.name} ${milliseconds(r.median)}`).join(", ")}.`);
		$("times").tBodies[0].replaceChildren(...rows.map(r => make("tr", {}, ...[r.name, milliseconds(r.median), milliseconds(r.low), milliseconds(r.high), String(r.times.length * r.count), (flops / r.median / 1e6).toFixed(1), (first / r.median).toFixed(2), r.apart === undefined ? "" : r.apart.toExponential(0)].map(text => make("td", {}, text)))));
		$("race-result").hidden = false;
	}

	$("start").addEventListener("click", async () => {
		if ($("race").dataset.state === "running") {
			stop = true;
			return;
		}
		if (!racers.some(r => r.box.checked)) {
			$("race-state").textContent = "Choose who races.";
			return;
		}
		stop = false;
		$("race").dataset.state = "running", $("start").textContent = "Stop";
		try {
			$("race").dataset.state = await race() ? "done" : "stopped";
		} catch (error) {
			$("race-state").textContent = `The race ended: ${error.message}`;
			$("race").dataset.state = "failed";
		}
		$("start").textContent = "Race again";
	});
	$("copy-times").addEventListener("click", () => {
		const cells = [...$("times").rows].map(r => [...r.cells].map(c => c.textContent));
		const lines = cells.map(r => `| ${r.join(" | ")} |`);
		lines.splice(1, 0, `|${"---|".repeat(cells[0].length)}`);
		flashkit.copy($("copy-times"), `${setting}; ${navigator.userAgent}, ${cores} logical cores\n\n${lines.join("\n")}\n`);
	});
})();
