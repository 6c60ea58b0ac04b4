// The 16-bit types by their definitions, independent of flashkit.js: a table of all values, and a search
// for the nearest one.
const decode = {
	f16: h => (h >> 15 ? -1 : 1) * ((h >> 10 & 31) === 31 ? h & 1023 ? NaN : Infinity : (h >> 10 & 31) === 0 ? (h & 1023) * 2 ** -24 : (1 + (h & 1023) / 1024) * 2 ** ((h >> 10 & 31) - 15)),
	bf16: h => (h >> 15 ? -1 : 1) * ((h >> 7 & 255) === 255 ? h & 127 ? NaN : Infinity : (h >> 7 & 255) === 0 ? (h & 127) * 2 ** -133 : (1 + (h & 127) / 128) * 2 ** ((h >> 7 & 255) - 127)),
};
const infinity = { f16: 0x7c00, bf16: 0x7f80 }, nan = { f16: 0x7e00, bf16: 0x7fc0 }, tables = {};
for (const type in decode) tables[type] = Float64Array.from({ length: 65536 }, (_, h) => decode[type](h));

export function widen(type, bits) {
	const list = new Float32Array(bits.length), table = tables[type];
	for (let i = 0; i < list.length; i++) list[i] = table[bits[i]];
	return list;
}

// round returns the bits of the nearest number of a type, ties to even.
export function round(type, x) {
	if (Number.isNaN(x)) return nan[type];
	const sign = x < 0 || Object.is(x, -0) ? 0x8000 : 0, table = tables[type], end = infinity[type], size = Math.abs(x);
	const beyond = table[end - 1] + (table[end - 1] - table[end - 2]); // the number in place of infinity, for rounding
	let low = 0, high = end;
	while (high - low > 1) {
		const middle = low + high >> 1;
		if (table[middle] <= size) low = middle;
		else high = middle;
	}
	if (size === Infinity) return sign | end;
	const above = high === end ? beyond : table[high], middle = (table[low] + above) / 2;
	return sign | (size > middle || size === middle && low % 2 ? high : low);
}

export function rounded(type, list) {
	const bits = new Uint16Array(list.length);
	for (let i = 0; i < list.length; i++) bits[i] = round(type, list[i]);
	return bits;
}
