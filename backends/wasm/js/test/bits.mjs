// node bits.mjs PACKAGE CALLS: runs calls that a Go test wrote to the folder CALLS, on the package in the
// folder PACKAGE, and prints the SHA-256 of the outputs of each call as lines of JSON. calls.json has the calls.
// A list [class, offset, length] in it is an array, which begins at that byte of data.bin.
import crypto from "node:crypto";
import fs from "node:fs";
import path from "node:path";
import process from "node:process";
import { pathToFileURL } from "node:url";

const [folder, calls] = process.argv.slice(2), file = fs.readFileSync(path.join(calls, "data.bin")), bytes = Uint8Array.from(file).buffer;
const { load } = await import(pathToFileURL(path.join(folder, "flashkit.js")).href), attention = await load();
const arrays = { Float32Array, Uint16Array, Uint8Array, Int32Array };
const revive = (key, x) => Array.isArray(x) && arrays[x[0]] ? new arrays[x[0]](bytes, x[1], x[2]) : key === "seed" ? BigInt(x) : x;
const hash = x => crypto.createHash("sha256").update(new Uint8Array(x.buffer, x.byteOffset, x.byteLength)).digest("hex");
for (const { pass, args } of JSON.parse(fs.readFileSync(path.join(calls, "calls.json")), revive)) {
	const results = attention[pass](args);
	console.log(JSON.stringify(Object.fromEntries(Object.entries(results).map(([name, x]) => [name, hash(x.data ?? x)]))));
}
