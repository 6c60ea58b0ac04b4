// A second host for kernel.wasm, in a few lines of JavaScript. It runs one head with
// dense float32 rows, and keeps all tensors in memory at once. The Go host divides
// the same work into smaller calls, with the same bits.
import fs from 'node:fs';

const MAGIC = 0x4b484c46, VERSION = 3, TILE = 128, FIRST = 1, LAST = 2, SCALED = 4, MORE = 8;
const SOFTCAP = 1, ALIBI = 2, BIAS = 4, MASK = 8, SINK = 16, DROPOUT = 32, DBIAS = 128;
const up = (n, to) => Math.ceil(n / to) * to;

export const compile = (path) => new WebAssembly.Module(fs.readFileSync(path));

// noise fills a new array with the numbers that the Go tests use.
let state = 1;
export const seed = (n) => { state = n; };
export function noise(n) {
  return Float32Array.from({ length: n }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return (state >>> 8) / (1 << 23) - 1;
  });
}

// prepare lays out the memory for N rows, M keys and dims D and DV. Row i sees the
// keys from i+first to i+last. prepare returns functions that run a kernel. The
// backward pass processes `rows` query rows and `chunk` keys at a time. Features
// are set in the block. x has Bias and Mask, both [N][M], Slope and Sink.
export function prepare(module, { N, M, D, DV, first, last, scale, rows = TILE, chunk = up(M, TILE), diagonal = 0, ...score }) {
  const { exports } = new WebAssembly.Instance(module, {});
  const d8 = up(D, 8), dv8 = up(DV, 8), keys = up(M, TILE);
  let at = exports.__heap_base.value;
  const take = (floats) => { const here = up(at, 64); at = here + 4 * floats; return here; };
  const block = take(48), q = take(TILE * D), k = take(TILE * D), v = take(TILE * DV), o = take(TILE * DV), lse = take(TILE);
  const dout = take(TILE * DV), dlse = take(TILE), dq = take(TILE * D);
  const bias = take(TILE * TILE), mask = take(TILE * TILE / 4), dbias = take(TILE * TILE);
  const bytes = 4 * (keys * 10 * (d8 + dv8) + keys + TILE * 4 * (d8 + dv8) + TILE * TILE * 3);
  const scratch = take(bytes / 4);
  exports.memory.grow(Math.ceil((at - exports.memory.buffer.byteLength) / 65536));
  const f32 = new Float32Array(exports.memory.buffer);
  const words = new Uint32Array(exports.memory.buffer, block, 48);
  words.set([MAGIC, VERSION, D, DV, 0, M, first, last, 0, q, k, v, o, lse, dout, dlse, dq, scratch, bytes]);
  f32[block / 4 + 8] = scale;

  const has = (score.softcap && SOFTCAP) | (score.alibi && ALIBI) | (score.bias && BIAS) | (score.mask && MASK) | (score.sink && SINK) | (score.dropout && DROPOUT);
  const pairs = has & (BIAS | MASK), most = pairs ? TILE : 1 << 30;
  const rowsOf = (kernel) => has ? `${kernel.replace('_scalar', '')}_feature_rows` : `${kernel}_rows`;
  const writeScore = (features, x) => {
    if (!features) return;
    words.set([features, diagonal, diagonal < 0 ? -1 : 0, 0, 0, 0, score.threshold, 0, ...score.seed, 0, 0, bias, mask, dbias, 0], 19);
    f32[block / 4 + 22] = score.softcap; f32[block / 4 + 26] = score.keep;
    if (score.alibi) f32[block / 4 + 23] = x.Slope[0];
    if (score.sink) f32[block / 4 + 24] = x.Sink[0];
  };
  // For each row i of a tile, tilesOf calls f(from, to, at): from and to are indices in Bias or
  // Mask, and at is an index on the stage [TILE][TILE].
  const tilesOf = (i0, i1, j0, j1, f) => { for (let i = i0; pairs && i < i1; i++) f(i * M + j0, i * M + j1, (i - i0) * TILE); };
  const bytesOf = new Uint8Array(exports.memory.buffer);
  const putPairs = (x, ...range) => tilesOf(...range, (from, to, at) => {
    if (has & BIAS) f32.set(x.Bias.subarray(from, to), bias / 4 + at);
    if (has & MASK) bytesOf.set(x.Mask.subarray(from, to), mask + at);
  });

  const put = (to, x, row, rows, dim) => f32.set(x.subarray(row * dim, (row + rows) * dim), to / 4);
  const get = (from, x, row, rows, dim) => x.set(f32.subarray(from / 4, from / 4 + rows * dim), row * dim);
  const call = (name, ...args) => { const code = exports[name](block, ...args); if (code) throw Error(`${name}(${args}): code ${code}`); };
  const steps = (from, to, by, f) => { for (let i = from; i < to; i += by) f(i, Math.min(i + by, to), Math.min(by, to - i)); };
  const stageKeys = (kernel, x, k0, k1) => {
    words[4] = k0; words[5] = k1 - k0;
    steps(k0, k1, TILE, (j0, j1, n) => {
      put(k, x.K, j0, n, D); put(v, x.V, j0, n, DV);
      call(`${kernel}_keys`, j0, j1);
    });
  };

  return {
    forward(kernel, x) {
      if (kernel.startsWith('decode')) return this.decode(kernel, x);
      stageKeys(kernel, x, 0, M);
      steps(0, N, TILE, (i0, i1, n) => {
        put(q, x.Q, i0, n, D);
        writeScore(has, x);
        steps(0, M, most, (j0, j1) => {
          putPairs(x, i0, i1, j0, j1);
          call(rowsOf(kernel), i0, i1, j0, j1, (j0 === 0 ? FIRST : 0) | (j1 === M ? LAST : 0));
        });
        get(o, x.O, i0, n, DV); get(lse, x.LSE, i0, n, 1);
      });
    },
    // Decode, for few query rows, reads the keys from the stage without packing.
    decode(kernel, x) {
      words[4] = 0; words[5] = M;
      put(q, x.Q, 0, N, D);
      writeScore(has, x);
      steps(0, M, TILE, (j0, j1, n) => {
        put(k, x.K, j0, n, D); put(v, x.V, j0, n, DV);
        putPairs(x, 0, N, j0, j1);
        call(`${kernel}_rows`, 0, N, j0, j1, (j0 === 0 ? FIRST : 0) | (j1 === M ? LAST : 0));
      });
      get(o, x.O, 0, N, DV); get(lse, x.LSE, 0, N, 1);
    },
    backward(kernel, x) {
      f32.fill(0, dlse / 4, dlse / 4 + TILE);
      x.DQ.fill(0); x.DBias?.fill(0);
      steps(0, M, chunk, (k0, k1) => {
        stageKeys(kernel, x, k0, k1);
        steps(0, N, rows, (i0, i1, n) => {
          put(q, x.Q, i0, n, D); put(o, x.O, i0, n, DV); put(dout, x.DO, i0, n, DV); put(lse, x.LSE, i0, n, 1);
          put(dq, x.DQ, i0, n, D);
          writeScore(has & ~SINK | (has & BIAS && DBIAS), x);
          steps(k0, k1, most, (j0, j1) => {
            putPairs(x, i0, i1, j0, j1);
            call(rowsOf(kernel), i0, i1, j0, j1, (j0 === k0 ? FIRST | (k0 ? MORE : 0) : 0) | (j1 === k1 ? LAST | (k1 === M ? SCALED : 0) : 0));
            if (has & BIAS) tilesOf(i0, i1, j0, j1, (from, to, at) => { for (let n = from; n < to; n++) x.DBias[n] += f32[dbias / 4 + at + n - from]; });
          });
          get(dq, x.DQ, i0, n, D);
        });
        steps(k0, k1, TILE, (j0, j1, n) => {
          call("bwd_grads", j0, j1);
          get(k, x.DK, j0, n, D); get(v, x.DV, j0, n, DV);
        });
      });
    },
  };
}

export function tensors({ N, M, D, DV, bias, mask, alibi, sink }) {
  const x = { Q: noise(N * D), K: noise(M * D), V: noise(M * DV), O: new Float32Array(N * DV), LSE: new Float32Array(N) };
  Object.assign(x, { DO: noise(N * DV), DQ: new Float32Array(N * D), DK: new Float32Array(M * D), DV: new Float32Array(M * DV) });
  if (bias) Object.assign(x, { Bias: noise(N * M), DBias: new Float32Array(N * M) });
  if (mask) x.Mask = Uint8Array.from(noise(N * M), (v) => v > -0.5);
  if (alibi) x.Slope = noise(1);
  if (sink) x.Sink = noise(1);
  return x;
}
