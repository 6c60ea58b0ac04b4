/** The SHA-256 of kernel.wasm in hexadecimal digits. */
export declare const SHA256: string;

/** A Float16Array, where the runtime has this class. */
export interface Float16Data {
  readonly [Symbol.toStringTag]: "Float16Array";
  readonly length: number;
  readonly buffer: ArrayBufferLike;
  readonly byteOffset: number;
}

export type DType = "f32" | "f16" | "bf16";

/** The numbers of a tensor. A Uint16Array holds the bits of float16 or bfloat16. */
export type Data = Float32Array | Uint16Array | Float16Data;

/**
 * An array with a shape, [batch, heads, rows, elements of a row]. The call uses the data in place. An output
 * must not share memory with another tensor of its call.
 */
export interface Tensor<T = Data> {
  readonly data: T;
  readonly shape: readonly [number, number, number, number];
  /** Required with a Uint16Array: the type whose bits it holds. */
  readonly dtype?: DType;
  /** Distances between batches, heads and rows, in elements. The elements of a row are contiguous. Default: dense. */
  readonly strides?: readonly [number, number, number];
}

/** A mask: 0 hides the pair of a row and a key, other bytes keep it. */
export type Mask = Tensor<Uint8Array | Uint8ClampedArray>;

/** The arguments of both passes. B is the batch, H query heads, G key/value heads, N rows, M keys. */
export interface Arguments<T = Data> {
  /** Queries [B, H, N, D]. */
  readonly q: Tensor<T>;
  /** Keys [B, G, M, D], of q's type. G divides H. The forward pass also accepts 16-bit k and v with a float32 q. */
  readonly k: Tensor;
  /** Values [B, G, M, DV], of k's type. */
  readonly v: Tensor;
  /** No row sees a key after the diagonal, which ends at the last row and the last key. */
  readonly causal?: boolean;
  /** Visible keys before and after the diagonal; Infinity for no limit. Not with causal. */
  readonly window?: readonly [number, number];
  /** The diagonal starts at the first row and the first key instead. */
  readonly topLeft?: boolean;
  /** Moves the diagonal by this number of keys. */
  readonly shift?: number;
  /** Factor of the products of q and k. Default: 1/sqrt(D). */
  readonly scale?: number;
  /** c > 0: a score s becomes c * tanh(s / c). */
  readonly softcap?: number;
  /** ALiBi slopes [H] or [B, H]: a score loses the slope times the distance of the key from the diagonal. */
  readonly slopes?: Float32Array;
  /** Added to the scores: [B, H, N, M], in float32 or q's type. Each of the first three dimensions may be 1 and then repeats. */
  readonly bias?: Tensor;
  /** Hides pairs: the shape is as for bias. */
  readonly mask?: Mask;
  /** A logit of each query head [H] that takes weight and has no value. */
  readonly sink?: Float32Array;
  /** The probability, below 1, that a weight is dropped. Needs seed. */
  readonly dropout?: number;
  /** From 0 to 2^64-1. The same seed drops the same weights in both passes. */
  readonly seed?: number | bigint;
  /** The position of the call in a larger problem, for dropout. key is a multiple of 8. */
  readonly origin?: { readonly batch?: number; readonly head?: number; readonly row?: number; readonly key?: number };
  /** The number of rows of each sequence [B]. Later rows are padding. */
  readonly qLens?: readonly number[] | Int32Array;
  /** The number of keys of each sequence [B]. Later keys are padding. */
  readonly kvLens?: readonly number[] | Int32Array;
}

export interface ForwardArguments<T = Data> extends Arguments<T> {
  /** Receives O [B, H, N, DV], in q's type. Default: a new tensor. */
  readonly o?: Tensor<T>;
  /** true requests LSE, the natural log-sum-exp of the scores of each row [B, H, N]; an array receives it. */
  readonly lse?: boolean | Float32Array;
  /** o and lse hold the result for earlier keys, and are updated. */
  readonly carry?: boolean;
  /** Page numbers [B, pages of a sequence]: k and v are pools [pages, G, keys of a page, D or DV]. Needs kvLens. */
  readonly pages?: readonly number[] | Int32Array;
  /** Default: decode_simd128 for at most 16 query rows of a key/value head, without lse; else fwd_simd128. */
  readonly kernel?: "fwd_simd128" | "fwd_scalar" | "decode_simd128";
}

export interface BackwardArguments<T = Data> extends Arguments<T> {
  /** The results of the forward pass. */
  readonly o: Tensor<T>;
  readonly lse: Float32Array;
  /** The gradient of O [B, H, N, DV], in q's type. */
  readonly dO: Tensor<T>;
  /** The gradient of LSE [B, H, N]. Default: 0. */
  readonly dLSE?: Float32Array;
  /** Receive the gradients, with the shapes and types of q, k and v. Default: new tensors. */
  readonly dQ?: Tensor<T>;
  readonly dK?: Tensor<T>;
  readonly dV?: Tensor<T>;
  /** true requests the gradient of bias, with the bias's shape and type; a tensor receives it. */
  readonly dBias?: boolean | Tensor;
  /** true requests the gradient of sink [H]; an array receives it. */
  readonly dSink?: boolean | Float32Array;
  /** Default: bwd_simd128. */
  readonly kernel?: "bwd_simd128" | "bwd_scalar";
}

export interface Gradients<T = Data> {
  readonly dQ: Tensor<T>;
  readonly dK: Tensor<T>;
  readonly dV: Tensor<T>;
  readonly dBias?: Tensor;
  readonly dSink?: Float32Array;
}

/** The passes over one instance of the module. A call blocks until it has the result. */
export interface Attention {
  /** The instance's memory. It grows to the size that one head of the largest call needs. */
  readonly memory: { readonly buffer: ArrayBufferLike };
  /** Returns O, and LSE if requested. A row that sees no key has O = 0 and LSE = -Infinity, or the sink. */
  forward<T extends Data>(args: ForwardArguments<T> & { readonly lse: true | Float32Array }): { readonly o: Tensor<T>; readonly lse: Float32Array };
  forward<T extends Data>(args: ForwardArguments<T>): { readonly o: Tensor<T>; readonly lse?: Float32Array };
  /** Returns the gradients of sum(O * dO) + sum(LSE * dLSE). */
  backward<T extends Data>(args: BackwardArguments<T>): Gradients<T>;
}

/** A wrong argument. Nothing was computed. */
export declare class ProblemError extends Error {
  /** The argument at fault, such as "k.shape". */
  readonly field: string;
  constructor(field: string, value: unknown, want: string);
}

/**
 * Loads kernel.wasm and checks its SHA-256. source is the file's address or bytes. Default: the file next to
 * flashkit.js.
 */
export declare function load(source?: string | { readonly href: string } | ArrayBuffer | Uint8Array): Promise<Attention>;

/** Returns the passes over a new instance of a WebAssembly.Module, or of its bytes, without checking a hash. */
export declare function open(module: object): Attention;

/** Returns the SHA-256 of bytes in hexadecimal digits. */
export declare function sha256(bytes: ArrayBuffer | Uint8Array): string;
