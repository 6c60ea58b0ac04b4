// This script runs the conformance cases of data/vectors.js in the browser. It runs each
// case with every engine, that is, every WebAssembly module.
"use strict";

(async () => {
	const { $, make } = flashkit, variants = ["simd128", "scalar"];
	const findings = [];
	let stop = false;
	const unwritten = 2 ** 99; // no output of a case has this value

	// noise returns an input that is not stored in the vectors. The format of the vectors
	// defines such inputs by a formula.
	function noise(label, n) {
		let seed = 0x811c9dc5;
		for (const byte of new TextEncoder().encode(label)) seed = Math.imul(seed ^ byte, 0x01000193);
		return Float32Array.from({ length: n }, (_, i) => {
			let h = seed + Math.imul(i, 0x9E3779B9) >>> 0;
			h = Math.imul(h ^ h >>> 16, 0x85EBCA6B);
			h = Math.imul(h ^ h >>> 13, 0xC2B2AE35);
			h = (h ^ h >>> 16) >>> 0;
			return ((h >>> 26) - 32) / 16;
		});
	}

	// tensors returns the inputs and the expected outputs of a case. All are copies, so
	// that no case changes the tensors of another case.
	function tensors(c, data) {
		const p = c.problem, sizes = { q: p.B * p.H * p.N * p.D, k: p.B * p.G * p.M * p.D, v: p.B * p.G * p.M * p.DV, do: p.B * p.H * p.N * p.DV };
		const x = {};
		for (const name in sizes) x[name] = noise(`${c.name}/${name}`, sizes[name]);
		for (const [name, [from, n]] of Object.entries(c.tensors)) x[name] = data.slice(from, from + n);
		return x;
	}

	// compare returns the largest difference between got and want that exceeds its bound,
	// or null if there is none. If the wanted number is NaN, only NaN is correct. If the
	// absolute value of a finite LSE is at least 2^20, the bound is this value times 2^-22.
	function compare(name, got, want, most) {
		let worst = null;
		for (let i = 0; i < want.length; i++) {
			const large = name === "lse" && Math.abs(want[i]) >= 2 ** 20 && Number.isFinite(want[i]);
			const bound = large ? Math.abs(want[i]) * 2 ** -22 : most;
			const off = Object.is(got[i], want[i]) || got[i] === want[i] ? 0 : Math.abs(got[i] - want[i]), error = Number.isNaN(off) ? Infinity : off;
			if (!(error <= bound) && (worst === null || error > worst.error)) worst = { output: name, index: i, got: String(got[i]), want: String(want[i]), error, bound };
		}
		if (worst) worst.error = String(worst.error);
		return worst;
	}

	// check returns null if the case passes. Otherwise it describes the failure: an
	// exception, a number beyond its bound, or different bits in a second run.
	function check(module, variant, c, data) {
		const p = c.problem, want = tensors(c, data), bits = x => new Uint32Array(x.buffer, x.byteOffset, x.length);
		const run = () => {
			const x = tensors(c, data), host = flashkit.host.open(module), poison = () => new Float32Array(host.memory.buffer).fill(NaN);
			const q = [p.B, p.H, p.N, p.D], k = [p.B, p.G, p.M, p.D], v = [p.B, p.G, p.M, p.DV], o = [p.B, p.H, p.N, p.DV], t = (data, shape) => ({ data, shape });
			const empty = shape => t(new Float32Array(shape.reduce((a, b) => a * b)).fill(unwritten), shape), lse = new Float32Array(p.B * p.H * p.N).fill(unwritten);
			const call = { q: t(x.q, q), k: t(x.k, k), v: t(x.v, v), window: p.window.map(n => n ?? Infinity), topLeft: p.topLeft, scale: p.scale };
			poison();
			const forward = host.forward({ ...call, o: empty(o), lse, kernel: `fwd_${variant}` });
			poison();
			const g = host.backward({ ...call, o: t(want.o, o), lse: want.lse, dO: t(x.do, o), dLSE: x.dlse, dQ: empty(q), dK: empty(k), dV: empty(v), kernel: `bwd_${variant}` });
			return { o: forward.o.data, lse, dq: g.dQ.data, dk: g.dK.data, dv: g.dV.data };
		};
		try {
			const got = run(), again = run();
			for (const name in got) {
				const wrong = compare(name, got[name], want[name], c.bounds[name]);
				if (wrong) return wrong;
				const other = bits(again[name]), at = bits(got[name]).findIndex((b, i) => b !== other[i]);
				if (at >= 0) return { output: name, index: at, error: "another run gave different bits" };
			}
			return null;
		} catch (error) {
			return { error: String(error.message ?? error) };
		}
	}

	const { cases } = flashkit.vectors, chips = cases.map(c => {
		const b = make("button", { type: "button", className: "chip" }, c.name);
		const tell = () => $("case").textContent = `${c.name} catches ${c.catches}. ${b.dataset.result ?? "Not run yet"}.`;
		for (const event of ["pointerenter", "focus", "click"]) b.addEventListener(event, tell);
		$("chips").append(make("li", {}, b));
		return b;
	});
	const count = (passed, failed, all) => {
		$("passed").textContent = passed, $("failed").textContent = failed;
		$("progress").max = all, $("progress").value = passed + failed;
	};
	count(0, 0, cases.length);

	async function run() {
		const data = await flashkit.numbers(Float32Array, flashkit.vectors.data), engines = [], missing = [];
		for (const engine of flashkit.engines) {
			try {
				engines.push({ engine, module: (await flashkit.load(engine)).module });
			} catch (error) {
				missing.push(error.message);
			}
		}
		const all = cases.length * engines.length * variants.length;
		let passed = 0, failed = 0;
		findings.length = 0;
		for (const chip of chips) chip.dataset.state = "", delete chip.dataset.result;
		for (const [i, c] of cases.entries()) {
			for (const { engine, module } of engines) for (const variant of variants) {
				const wrong = check(module, variant, c, data);
				if (wrong) findings.push({ case: c.name, catches: c.catches, problem: c.text, engine: engine.name, sha256: engine.sha256, kernel: variant, ...wrong, browser: navigator.userAgent });
				wrong ? failed++ : passed++;
			}
			const bad = findings.filter(f => f.case === c.name).length;
			chips[i].dataset.state = bad ? "failed" : "passed";
			chips[i].dataset.result = bad ? `${bad} failed` : "All kernels passed";
			count(passed, failed, all);
			await new Promise(done => setTimeout(done)); // so that the browser draws the page
			if (stop) break;
		}
		$("verdict").textContent = `${passed} passed, ${failed} failed, ${all - passed - failed} not run.${missing.length ? ` Left out: ${missing.join("; ")}.` : ""}`;
		$("conformance").dataset.state = failed || engines.length === 0 ? "failed" : stop ? "stopped" : "passed";
		$("findings").hidden = findings.length === 0;
		$("finding").textContent = findings.length ? JSON.stringify(findings[0], null, 2) : "";
	}

	$("check").addEventListener("click", async () => {
		if ($("conformance").dataset.state === "running") {
			stop = true;
			return;
		}
		stop = false;
		$("conformance").dataset.state = "running", $("check").textContent = "Stop", $("verdict").textContent = "";
		try {
			await run();
		} catch (error) {
			$("verdict").textContent = `The vectors could not be run: ${error.message}`;
			$("conformance").dataset.state = "failed";
		}
		$("check").textContent = "Run again";
	});
	$("copy-findings").addEventListener("click", () => flashkit.copy($("copy-findings"), JSON.stringify(findings, null, 2)));
})();
