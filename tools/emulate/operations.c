// Decodes and computes the emulated instructions. amx.c describes the program.
//
// This code runs in the program's threads, in which FS does not point to libc's thread data.

#if defined(__x86_64__) && defined(__linux__)

#include <immintrin.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>

#include "amx.h"

#define VECTORS __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64 };

// A block is a thread's state in the emulation. The assembly below uses the offsets of its fields.
typedef struct {
	uint64_t fs;                // FS of the thread that owns the block: a new thread inherits GS, but has another FS
	uint64_t stack_of_program;
	uint32_t mxcsr, unused[11];
	uint64_t r[16];             // general registers, in the order of their encoding
	uint64_t k[8];
	uint8_t z[32][64];
	uint8_t tile[TILES][ROWS][ROW_BYTES];
	uint8_t rows[TILES];        // 0: not configured
	uint16_t row_bytes[TILES];
} block;

_Static_assert(offsetof(block, r) == 64 && offsetof(block, k) == 192 && offsetof(block, z) == 256, "the assembly");
_Static_assert(sizeof(block) <= BLOCK_BYTES / 2, "the stack");

HIDDEN uint64_t next_block, end_of_blocks;
HIDDEN void emulate(block *t, const instruction *in);

// Stubs call enter. RAX then holds the address of the decoded instruction, which is the first field
// of a site. On the stack, above the return address, are the program's RAX and flags. A stub and
// enter use 48 bytes of the program's stack.
__asm__(
	".text\n"
	".globl enter\n"
	".p2align 4\n"
	"enter:\n"
	"	pushq %rbx\n"
	"	rdfsbase %rbx\n"
	"	cmpq %rbx, %gs:0\n"
	"	je 1f\n"
	"	movl $32768, %ebx\n" // GS points to another thread's block: take a new block
	"	lock xaddq %rbx, next_block(%rip)\n"
	"	cmpq end_of_blocks(%rip), %rbx\n"
	"	jb 2f\n"
	"	ud2\n"
	"2:	wrgsbase %rbx\n"
	"	pushq %rcx\n"
	"	rdfsbase %rcx\n"
	"	movq %rcx, (%rbx)\n"
	"	popq %rcx\n"
	"1:	rdgsbase %rbx\n"
	"	movq %rcx, 64+8*1(%rbx)\n"
	"	movq 16(%rsp), %rcx\n"
	"	movq %rcx, 64+8*0(%rbx)\n"
	"	movq %rdx, 64+8*2(%rbx)\n"
	"	movq (%rsp), %rcx\n"
	"	movq %rcx, 64+8*3(%rbx)\n"
	"	leaq 32(%rsp), %rcx\n"
	"	movq %rcx, 64+8*4(%rbx)\n"
	"	movq %rbp, 64+8*5(%rbx)\n"
	"	movq %rsi, 64+8*6(%rbx)\n"
	"	movq %rdi, 64+8*7(%rbx)\n"
	EACH("8,9,10,11,12,13,14,15", "movq %r\\i, 64+8*\\i(%rbx)")
	EACH("0,1,2,3,4,5,6,7", "kmovq %k\\i, 192+8*\\i(%rbx)")
	EACH(ALL, "vmovdqu64 %zmm\\i, 256+64*\\i(%rbx)")
	"	stmxcsr 16(%rbx)\n"
	"	ldmxcsr flushing(%rip)\n"
	"	movq %rsp, 8(%rbx)\n"
	"	leaq 32768(%rbx), %rsp\n"
	"	movq %rbx, %rdi\n"
	"	movq %rax, %rsi\n"
	"	call emulate\n"
	"	movq 8(%rbx), %rsp\n"
	"	ldmxcsr 16(%rbx)\n"
	EACH(ALL, "vmovdqu64 256+64*\\i(%rbx), %zmm\\i")
	EACH("0,1,2,3,4,5,6,7", "kmovq 192+8*\\i(%rbx), %k\\i")
	EACH("8,9,10,11,12,13,14,15", "movq 64+8*\\i(%rbx), %r\\i")
	"	movq 64+8*7(%rbx), %rdi\n"
	"	movq 64+8*6(%rbx), %rsi\n"
	"	movq 64+8*5(%rbx), %rbp\n"
	"	movq 64+8*2(%rbx), %rdx\n"
	"	movq 64+8*1(%rbx), %rcx\n"
	"	popq %rbx\n"
	"	ret\n"
	"flushing:\n"
	"	.long 0x9fc0\n" // MXCSR: denormals are zeros, round to nearest even, no flags
);

long kernel(long number, long a, long b, long c, long d) {
	register long r10 __asm__("r10") = d;
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
	return result;
}

void refuse(const char *why) {
	uint64_t illegal = 1 << (SIGILL - 1);
	kernel(SYS_write, 2, (long)why, strlen(why), 0);
	kernel(SYS_rt_sigprocmask, SIG_BLOCK, (long)&illegal, 0, 8); // a blocked SIGILL ends the process without a handler
	__builtin_trap();
}

// The operations.

static void configure(block *t, const uint8_t *p) {
	memset(t->tile, 0, sizeof t->tile);
	memset(t->rows, 0, sizeof t->rows);
	memset(t->row_bytes, 0, sizeof t->row_bytes);
	if (!p || p[0] == 0)
		return;
	if (p[0] != 1 || p[1] != 0)
		refuse("amx: LDTILECFG: want palette 1 and start row 0\n");
	for (int i = 2; i < 64; i++)
		if (p[i] && (i < 16 || (i >= 32 && i < 48) || i >= 56))
			refuse("amx: LDTILECFG: a reserved byte is not 0\n");
	for (int i = 0; i < TILES; i++) {
		int rows = p[48 + i], bytes = p[16 + 2 * i] | p[17 + 2 * i] << 8;
		if (rows > ROWS || bytes > ROW_BYTES || !rows != !bytes)
			refuse("amx: LDTILECFG: a tile's shape is not valid\n");
		t->rows[i] = rows;
		t->row_bytes[i] = bytes;
	}
}

static void configured(const block *t, int tile) {
	if (!t->rows[tile] || t->row_bytes[tile] % 4)
		refuse("amx: a tile is not configured, or not for words\n");
}

static void load(block *t, int tile, const uint8_t *p, uint64_t stride) {
	configured(t, tile);
	memset(t->tile[tile], 0, sizeof t->tile[tile]);
	for (int i = 0; i < t->rows[tile]; i++)
		memcpy(t->tile[tile][i], p + i * stride, t->row_bytes[tile]);
}

static void store(block *t, int tile, uint8_t *p, uint64_t stride) {
	configured(t, tile);
	for (int i = 0; i < t->rows[tile]; i++)
		memcpy(p + i * stride, t->tile[tile][i], t->row_bytes[tile]);
}

VECTORS static inline __m512 low(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
VECTORS static inline __m512 high(__m512i pairs) { return _mm512_castsi512_ps(_mm512_and_epi32(pairs, _mm512_set1_epi32(0xffff0000))); }

// fits refuses tiles whose shapes do not fit together for a product.
static void fits(const block *t, int dst, int a, int b) {
	configured(t, dst), configured(t, a), configured(t, b);
	if (dst == a || dst == b || a == b || t->rows[dst] != t->rows[a] || t->row_bytes[dst] != t->row_bytes[b] || t->row_bytes[a] / 4 != t->rows[b])
		refuse("amx: a product's tiles are the same, or do not fit together\n");
}

// products computes TDPBF16PS. Each 32-bit element of a and b is a pair of bf16 numbers. products
// sums the products of lower numbers and the products of upper numbers separately, then adds the
// two sums to dst. Elements outside a tile's configured shape are 0 and stay 0.
VECTORS static void products(block *t, int dst, int a, int b) {
	fits(t, dst, a, b);
	for (int m = 0; m < t->rows[dst]; m++) {
		__m512 lows = _mm512_setzero_ps(), highs = _mm512_setzero_ps();
		for (int k = 0; k < t->rows[b]; k++) {
			uint32_t pair;
			memcpy(&pair, t->tile[a][m] + 4 * k, 4);
			__m512i x = _mm512_set1_epi32(pair), y = _mm512_loadu_si512(t->tile[b][k]);
			lows = _mm512_fmadd_ps(low(x), low(y), lows);
			highs = _mm512_fmadd_ps(high(x), high(y), highs);
		}
		__mmask16 columns = (1u << t->row_bytes[dst] / 4) - 1;
		__m512 sum = _mm512_add_ps(_mm512_loadu_ps(t->tile[dst][m]), _mm512_add_ps(lows, highs));
		_mm512_storeu_ps(t->tile[dst][m], _mm512_maskz_mov_ps(columns, sum));
	}
}

// integers computes TDPBUSD: sums of products of a's unsigned and b's signed bytes, modulo 2^32.
static void integers(block *t, int dst, int a, int b) {
	fits(t, dst, a, b);
	for (int m = 0; m < t->rows[dst]; m++)
		for (int n = 0; n < t->row_bytes[dst] / 4; n++) {
			uint32_t sum;
			memcpy(&sum, t->tile[dst][m] + 4 * n, 4);
			for (int k = 0; k < t->row_bytes[a]; k++)
				sum += t->tile[a][m][k] * (int8_t)t->tile[b][k / 4][4 * n + k % 4];
			memcpy(t->tile[dst][m] + 4 * n, &sum, 4);
		}
}

VECTORS static void dot(block *t, int dst, int a, int b) {
	__m512i x = _mm512_loadu_si512(t->z[a]), y = _mm512_loadu_si512(t->z[b]);
	__m512 sum = _mm512_fmadd_ps(high(x), high(y), _mm512_loadu_ps(t->z[dst]));
	_mm512_storeu_ps(t->z[dst], _mm512_fmadd_ps(low(x), low(y), sum));
}

// rounded rounds 16 float32 numbers to bf16, to nearest even. Denormal numbers become zeros. NaNs
// become quiet NaNs.
VECTORS static __m256i rounded(__m512i x) {
	__m512i magnitude = _mm512_and_epi32(x, _mm512_set1_epi32(0x7fffffff));
	__m512i odd = _mm512_and_epi32(_mm512_srli_epi32(x, 16), _mm512_set1_epi32(1));
	__m512i y = _mm512_add_epi32(x, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
	__mmask16 tiny = _mm512_cmplt_epu32_mask(magnitude, _mm512_set1_epi32(0x00800000));
	__mmask16 nan = _mm512_cmpgt_epu32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
	y = _mm512_mask_and_epi32(y, tiny, x, _mm512_set1_epi32(0x80000000));
	y = _mm512_mask_or_epi32(y, nan, x, _mm512_set1_epi32(0x00400000));
	return _mm512_cvtepi32_epi16(_mm512_srli_epi32(y, 16));
}

VECTORS static void convert(block *t, int dst, int a, int b) {
	__m256i lower = rounded(_mm512_loadu_si512(t->z[b])), upper = rounded(_mm512_loadu_si512(t->z[a]));
	_mm256_storeu_si256((__m256i *)t->z[dst], lower);
	_mm256_storeu_si256((__m256i *)(t->z[dst] + 32), upper);
}

void emulate(block *t, const instruction *in) {
	uint8_t *p = (uint8_t *)(t->r[in->base] + in->disp);
	uint64_t stride = in->index == 4 ? 0 : t->r[in->index] << in->scale;
	switch (in->op) {
	case LDTILECFG: configure(t, p + stride); break;
	case TILERELEASE: configure(t, NULL); break;
	case TILEZERO: configured(t, in->dst), memset(t->tile[in->dst], 0, sizeof t->tile[0]); break;
	case TILELOADD: load(t, in->dst, p, stride); break;
	case TILESTORED: store(t, in->dst, p, stride); break;
	case TDPBF16PS: products(t, in->dst, in->a, in->b); break;
	case TDPBUSD: integers(t, in->dst, in->a, in->b); break;
	case VDPBF16PS: dot(t, in->dst, in->a, in->b); break;
	case VCVTNE2PS2BF16: convert(t, in->dst, in->a, in->b); break;
	}
}

// decodeMemory decodes ModRM, SIB and displacement, and returns the length of all three, or 0 for
// an unsupported encoding. x is bit 3 of the index register's number, b is bit 3 of the base
// register's number.
static int decodeMemory(const uint8_t *p, int x, int b, instruction *in) {
	int mod = p[0] >> 6, n = 1;
	in->base = p[0] & 7, in->index = 4;
	if (in->base == 4) {
		in->base = p[1] & 7, in->index = (p[1] >> 3 & 7) | x, in->scale = p[1] >> 6;
		n = 2;
	}
	if (mod == 3 || (mod == 0 && in->base == 5))
		return 0;
	in->base |= b;
	if (mod == 1)
		in->disp = (int8_t)p[n++];
	if (mod == 2) {
		memcpy(&in->disp, p + n, 4);
		n += 4;
	}
	return n;
}

// decodeTile decodes a tile instruction with a VEX prefix. The instruction's bits are: C4, R X B
// 00010, 0 vvvv 0 pp, opcode, operands.
static int decodeTile(const uint8_t *p, instruction *in) {
	enum { NP, P66, PF3, PF2 };
	int x = p[1] & 0x40 ? 0 : 8, b = p[1] & 0x20 ? 0 : 8, v = ~(p[2] >> 3) & 15, what = p[3] << 8 | (p[2] & 3), n;
	int extended = !(p[1] & 0x80), registers = p[4] >= 0xc0;
	if ((p[1] & 31) != 2 || p[2] & 0x84 || extended)
		return 0;
	in->dst = p[4] >> 3 & 7;
	if ((what == (0x5c00 | PF3) || what == (0x5e00 | P66)) && registers && !x && !b && v < 8) {
		in->op = what == (0x5c00 | PF3) ? TDPBF16PS : TDPBUSD, in->a = p[4] & 7, in->b = v;
		return 5;
	}
	if (v)
		return 0;
	if (what == (0x4900 | NP) && p[4] == 0xc0) {
		in->op = TILERELEASE;
		return 5;
	}
	if (what == (0x4900 | PF2) && registers && !b && !(p[4] & 7)) {
		in->op = TILEZERO;
		return 5;
	}
	if (what == (0x4900 | NP) && !in->dst)
		in->op = LDTILECFG;
	else if ((what == (0x4b00 | PF2) || what == (0x4b00 | P66)) && (p[4] & 7) == 4)
		in->op = TILELOADD; // or TILELOADDT1, which differs only in caching
	else if (what == (0x4b00 | PF3) && (p[4] & 7) == 4)
		in->op = TILESTORED;
	else
		return 0;
	n = decodeMemory(p + 4, x, b, in);
	return n ? 4 + n : 0;
}

// decodeVector decodes a vector instruction with an EVEX prefix, on whole registers and without a
// mask. The instruction's bits are: 62, R X B R' 0010, 0 vvvv 1 pp, 0 10 0 V' 000, opcode, ModRM.
static int decodeVector(const uint8_t *p, instruction *in) {
	if ((p[1] & 15) != 2 || (p[2] & 0x84) != 4 || (p[3] & 0xf7) != 0x40 || p[5] < 0xc0)
		return 0;
	if (p[4] == 0x52 && (p[2] & 3) == 2)
		in->op = VDPBF16PS;
	else if (p[4] == 0x72 && (p[2] & 3) == 3)
		in->op = VCVTNE2PS2BF16;
	else
		return 0;
	in->dst = (p[5] >> 3 & 7) | (~p[1] >> 4 & 8) | (~p[1] & 16);
	in->a = (~p[2] >> 3 & 15) | (~p[3] & 8) << 1;
	in->b = (p[5] & 7) | (~p[1] >> 2 & 8) | (~p[1] >> 2 & 16);
	return 6;
}

int decode(const uint8_t *p, instruction *in) {
	memset(in, 0, sizeof *in);
	return p[0] == 0xc4 ? decodeTile(p, in) : p[0] == 0x62 ? decodeVector(p, in) : 0;
}

#endif
