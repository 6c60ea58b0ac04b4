// node test.mjs PACKAGE VECTORS SEED: checks the package in the folder PACKAGE. It runs the golden vectors in
// the folder VECTORS, random problems from SEED, and wrong arguments, and prints the counts as JSON.
import fs from "node:fs";
import path from "node:path";
import process from "node:process";
import { pathToFileURL } from "node:url";
import * as hostile from "./hostile.mjs";
import * as random from "./random.mjs";
import * as vectors from "./vectors.mjs";

const [folder, testdata, seed] = process.argv.slice(2), suffix = ".safetensors.gz";
const flashkit = await import(pathToFileURL(path.join(folder, "flashkit.js")).href), attention = await flashkit.load();
const names = fs.readdirSync(testdata).filter(name => name.endsWith(suffix)).map(name => name.slice(0, -suffix.length));

async function refuses(name, bytes) {
	try {
		await flashkit.load(bytes);
		return [`${name}: no error`];
	} catch (error) {
		return /SHA-256/.test(error.message) ? [] : [`${name}: ${error.message}`];
	}
}
const wasm = fs.readFileSync(path.join(folder, "kernel.wasm")), other = Uint8Array.from(wasm);
other[other.length - 1] ^= 1;
const failures = [...await refuses("another module", other), ...await refuses("no module", new Uint8Array(0))];
for (const source of [wasm, wasm.buffer.slice(wasm.byteOffset, wasm.byteOffset + wasm.length), path.relative(folder, path.join(folder, "kernel.wasm"))]) await flashkit.load(source);

const golden = await vectors.run(attention, names, name => fs.readFileSync(path.join(testdata, name)));
const wrong = hostile.run({ ...flashkit, attention }), count = 40;
failures.push(...golden.failures, ...wrong.failures, ...random.run(attention, Number(seed), count));
console.log(JSON.stringify({ cases: golden.cases, runs: golden.runs, random: count, wrong: wrong.count }));
for (const failure of failures.slice(0, 20)) console.error(failure);
process.exitCode = failures.length ? 1 : 0;
