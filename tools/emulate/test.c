// The test of amx.c. It compares each instruction with a scalar computation. The test runs twice.
// The first time, the processor executes the instructions that it has. The second time, all
// instructions are emulated.

#if defined(__x86_64__) && defined(__linux__)

#define _GNU_SOURCE
#include <errno.h>
#include <immintrin.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "amx.h"

// testTiles loads a and b into tiles 7 and 3, with the shapes of config. It adds their product to
// c. It then stores a tile of zeros at a + 1024 bytes. testIntegers does this with TDPBUSD.
HIDDEN void testTiles(const uint8_t *config, void *c, void *a, void *b, uint64_t stride);
HIDDEN void testIntegers(const uint8_t *config, void *c, void *a, void *b, uint64_t stride);

// testVectors loads z into the vector registers, executes VECTOR_TESTS and stores the registers in
// z. It returns the carry flag, which must be 1 because testVectors sets it before.
HIDDEN int testVectors(uint32_t z[32][16]);

#define VECTOR_TESTS(X) \
	X(vdpbf16ps, 0, 1, 2) X(vdpbf16ps, 21, 13, 30) X(vdpbf16ps, 14, 16, 15) X(vdpbf16ps, 3, 3, 3) \
	X(vcvtne2ps2bf16, 5, 18, 8) X(vcvtne2ps2bf16, 31, 31, 4) X(vcvtne2ps2bf16, 24, 6, 23) X(vcvtne2ps2bf16, 7, 9, 7)
#define AS_TEXT(name, dst, a, b) "	" #name " %zmm" #b ", %zmm" #a ", %zmm" #dst "\n"
#define AS_STEP(name, dst, a, b) {name, dst, a, b},

#define TILES(name, product) \
	name ":\n" \
	"	ldtilecfg (%rdi)\n" \
	"	movq %rcx, %r11\n" \
	"	leaq -64(%rdx), %r10\n" \
	"	movq %r8, %r9\n" \
	"	tileloadd (%rsi,%r8,1), %tmm0\n" \
	"	tileloadd 64(%r10,%r9,1), %tmm7\n" \
	"	tileloaddt1 (%r11,%r8,1), %tmm3\n" \
	"	" product " %tmm3, %tmm7, %tmm0\n" \
	"	tilestored %tmm0, (%rsi,%r9,1)\n" \
	"	tilezero %tmm7\n" \
	"	shrq $1, %r8\n" \
	"	tilestored %tmm7, 1024(%rdx,%r8,2)\n" \
	"	tilerelease\n" \
	"	ret\n"

extern uint8_t tests[] HIDDEN;

__asm__(
	".text\n"
	".p2align 12\n"
	"tests:\n"
	TILES("testTiles", "tdpbf16ps")
	TILES("testIntegers", "tdpbusd")
	"testVectors:\n"
	EACH(ALL, "vmovdqu64 64*\\i(%rdi), %zmm\\i")
	"	stc\n"
	VECTOR_TESTS(AS_TEXT)
	"	setc %al\n"
	"	movzbl %al, %eax\n"
	EACH(ALL, "vmovdqu64 %zmm\\i, 64*\\i(%rdi)")
	"	vzeroupper\n"
	"	ret\n"
	".p2align 12\n"
);

// Scalar computations of the instructions.

static float asFloat(uint32_t bits) {
	float x;
	memcpy(&x, &bits, 4);
	return x;
}

static uint32_t asBits(float x) {
	uint32_t bits;
	memcpy(&bits, &x, 4);
	return bits;
}

static int isNaN(uint32_t x) { return (x & 0x7fffffff) > 0x7f800000; }

static uint32_t flushed(uint32_t x) { return x & 0x7f800000 ? x : x & 0x80000000; }

// plainFMA returns sum + x*y, where x and y are bf16.
__attribute__((target("fma"))) static uint32_t plainFMA(uint32_t sum, uint16_t x, uint16_t y) {
	float a = asFloat(flushed((uint32_t)x << 16)), b = asFloat(flushed((uint32_t)y << 16));
	return flushed(asBits(__builtin_fmaf(a, b, asFloat(flushed(sum)))));
}

static uint32_t plainSum(uint32_t x, uint32_t y) { return flushed(asBits(asFloat(flushed(x)) + asFloat(flushed(y)))); }

static uint16_t plainRounded(uint32_t x) {
	if (isNaN(x))
		return x >> 16 | 0x40;
	x = flushed(x);
	uint32_t rest = x & 0xffff, y = x >> 16;
	return y + (rest > 0x8000 || (rest == 0x8000 && y % 2));
}

enum { vdpbf16ps, vcvtne2ps2bf16 };

static const struct { int op, dst, a, b; } vectorTests[] = {VECTOR_TESTS(AS_STEP)};

static void plainVectors(uint32_t z[32][16]) {
	for (size_t i = 0; i < sizeof vectorTests / sizeof *vectorTests; i++) {
		uint32_t *dst = z[vectorTests[i].dst], *a = z[vectorTests[i].a], *b = z[vectorTests[i].b], out[16];
		for (int j = 0; j < 16; j++) {
			uint32_t *from = j < 8 ? b + 2 * j : a + 2 * j - 16;
			out[j] = vectorTests[i].op == vdpbf16ps
				? plainFMA(plainFMA(dst[j], a[j] >> 16, b[j] >> 16), a[j], b[j])
				: plainRounded(from[0]) | (uint32_t)plainRounded(from[1]) << 16;
		}
		memcpy(dst, out, sizeof out);
	}
}

enum { STRIDE = 20, WORDS = 16 * STRIDE }; // words of a row and of a matrix in memory

static void plainIntegers(int rows, int quads, int columns, uint32_t *c, uint32_t *a, const uint32_t *b) {
	for (int m = 0; m < rows; m++)
		for (int n = 0; n < columns; n++)
			for (int k = 0; k < quads; k++)
				for (int shift = 0; shift < 32; shift += 8)
					c[m * STRIDE + n] += (uint8_t)(a[m * STRIDE + k] >> shift) * (int8_t)(b[k * STRIDE + n] >> shift);
	for (int m = 0; m < rows; m++)
		memset(a + 256 + m * STRIDE, 0, 4 * quads);
}

static void plainTiles(int rows, int pairs, int columns, uint32_t *c, uint32_t *a, const uint32_t *b) {
	for (int m = 0; m < rows; m++)
		for (int n = 0; n < columns; n++) {
			uint32_t low = 0, high = 0;
			for (int k = 0; k < pairs; k++) {
				uint32_t x = a[m * STRIDE + k], y = b[k * STRIDE + n];
				low = plainFMA(low, x, y);
				high = plainFMA(high, x >> 16, y >> 16);
			}
			c[m * STRIDE + n] = plainSum(c[m * STRIDE + n], plainSum(low, high));
		}
	for (int m = 0; m < rows; m++)
		memset(a + 256 + m * STRIDE, 0, 4 * pairs);
}

static uint32_t draw(uint64_t *state) {
	*state = *state * 6364136223846793005 + 1442695040888963407;
	return *state >> 32;
}

// number returns the bits of a random float32. kind selects the number's range: 0 for numbers near
// 1, 1 for numbers so small that products are tiny, 2 for any bits.
static uint32_t number(uint64_t *state, int kind) {
	uint32_t x = draw(state), exponent = (kind == 0 ? 119 : 60) + draw(state) % 12;
	if (kind == 2)
		return x;
	if (draw(state) % 64 == 0)
		exponent = 0;
	return (x & 0x807fffff) | exponent << 23;
}

static void fill(uint64_t *state, int kind, uint32_t *x, int n) {
	for (int i = 0; i < n; i++)
		x[i] = draw(state) % 2 ? number(state, kind) : (number(state, kind) & 0xffff0000) | number(state, kind) >> 16;
}

// differ reports whether the bits of got and want differ in any word, and prints the first
// difference. All NaNs count as equal.
static int differ(const char *what, const uint32_t *got, const uint32_t *want, int n) {
	for (int i = 0; i < n; i++)
		if (got[i] != want[i] && !(isNaN(got[i]) && isNaN(want[i]))) {
			printf("amx: %s, word %d: %08x, want %08x\n", what, i, got[i], want[i]);
			return 1;
		}
	return 0;
}

static int testOnce(uint64_t *state, int kind, int tiles) {
	uint32_t z[2][32][16], c[2][WORDS], a[2][256 + WORDS], b[WORDS];
	fill(state, kind, z[0][0], 512);
	memcpy(z[1], z[0], sizeof z[0]);
	unsigned mxcsr = _mm_getcsr();
	int kept = testVectors(z[0]) && mxcsr == _mm_getcsr();
	plainVectors(z[1]);
	if (!kept)
		puts("amx: flags or MXCSR are not kept");
	if (!kept || differ("vectors", z[0][0], z[1][0], 512))
		return 1;
	if (!tiles)
		return 0;
	int rows = 1 + draw(state) % 16, pairs = 1 + draw(state) % 16, columns = 1 + draw(state) % 16;
	uint8_t config[64] = {1};
	config[16] = 4 * columns, config[16 + 2 * 7] = 4 * pairs, config[16 + 2 * 3] = 4 * columns;
	config[48] = rows, config[48 + 7] = rows, config[48 + 3] = pairs;
	fill(state, kind, c[0], WORDS), fill(state, kind, a[0], 256 + WORDS), fill(state, kind, b, WORDS);
	memcpy(c[1], c[0], sizeof c[0]), memcpy(a[1], a[0], sizeof a[0]);
	testTiles(config, c[0], a[0], b, 4 * STRIDE);
	plainTiles(rows, pairs, columns, c[1], a[1], b);
	if (differ("tiles, c", c[0], c[1], WORDS) || differ("tiles, a", a[0], a[1], 256 + WORDS))
		return 1;
	fill(state, 2, c[0], WORDS), fill(state, 2, a[0], 256 + WORDS), fill(state, 2, b, WORDS);
	memcpy(c[1], c[0], sizeof c[0]), memcpy(a[1], a[0], sizeof a[0]);
	testIntegers(config, c[0], a[0], b, 4 * STRIDE);
	plainIntegers(rows, pairs, columns, c[1], a[1], b);
	if (memcmp(c[0], c[1], sizeof c[0]) || memcmp(a[0], a[1], sizeof a[0]))
		return puts("amx: integers differ"), 1;
	return 0;
}

enum { THREADS = 4, CASES = 3000 };

static int withTiles;
static pthread_barrier_t together; // makes threads reach an instruction at the same time

static void *testMany(void *thread) {
	uint64_t state = (uint64_t)thread, failed = 0;
	pthread_barrier_wait(&together);
	for (int i = 0; i < CASES && !failed; i++)
		failed = testOnce(&state, i % 3, withTiles);
	return (void *)failed;
}

static int endsBySIGILL(void (*f)(void)) {
	int status;
	pid_t child = fork();
	if (!child) {
		close(2);
		f();
		_exit(0);
	}
	return waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGILL;
}

static void unknown(void) { __asm__ volatile("ud2"); }

// illShaped configures a tile of 17 rows, which is not valid.
static void illShaped(void) {
	uint8_t config[64] = {1};
	uint32_t words[256 + WORDS] = {0};
	config[16] = 4, config[48] = 17;
	testTiles(config, words, words, words, 64);
}

static int testThreads(void) {
	pthread_t threads[THREADS];
	int failed = 0;
	pthread_barrier_init(&together, NULL, THREADS);
	for (uint64_t i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, testMany, (void *)i))
			fail("no threads", "test");
	for (int i = 0; i < THREADS; i++) {
		void *result;
		pthread_join(threads[i], &result);
		failed |= result != NULL;
	}
	return failed;
}

int test(int native) {
	if (mprotect(tests, 4096, PROT_READ | PROT_WRITE | PROT_EXEC))
		fail(strerror(errno), "mprotect");
	prepare((uint8_t *)((uintptr_t)tests - (64 << 20)));
	withTiles = !native || !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
	int failed = testThreads(), own = force(tests, tests + 4096);
	if (failed && !own)
		return 1;
	// A processor may round differently from the manual's formula. Kernels tolerate this. If the
	// processor's results differ, the test prints this, but does not fail.
	printf("amx: %d instructions of the processor, others by traps: %d times %d cases, %s\n", own, THREADS, CASES, failed ? "the processor DIFFERS" : "ok");
	withTiles = 1;
	int wrong = testThreads();
	printf("amx: all instructions emulated: %d times %d cases, %s\n", THREADS, CASES, wrong ? "FAILED" : "ok");
	if (!(endsBySIGILL(unknown) && endsBySIGILL(illShaped)))
		wrong = 1, puts("amx: what is illegal does not end by SIGILL");
	return wrong;
}

#endif
