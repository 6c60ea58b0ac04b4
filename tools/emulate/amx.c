// Runs a static Go program on Linux and amd64 as if the processor had AMX-BF16, AMX-INT8 and
// AVX512-BF16. It needs AVX-512, FSGSBASE (Linux 5.9) and membarrier.
//
//	cc -O2 -fPIE -pie -fno-stack-protector -fno-plt -pthread -o amx tools/emulate/*.c
//	amx program arguments...    run a program made by CGO_ENABLED=0 go build
//	go test -exec amx           with CGO_ENABLED=0 and -tags nocuda
//	amx --test                  compare each instruction with a plain computation
//
// On a processor with AMX the program runs unchanged, and --test also tests the processor. On a
// processor without AVX-512, amx prints "skipped: ..." and ends with status 0. In some virtual
// machines the processor has AVX512-BF16, but CPUID does not report it. The processor then executes
// these instructions itself.
//
// The program is loaded into this process. Illegal instructions overwrite the program's CPUID
// instructions. The SIGILL handler then returns CPUID's result with the bits of AMX and
// AVX512-BF16 set. Other instructions that the processor lacks raise SIGILL once. The handler
// overwrites such an instruction with a jump to a stub, and the stub calls emulate. A seccomp
// filter keeps the program from replacing the handler. Goroutine stacks are too small for C. So
// each thread has a block of memory with its saved registers, its tiles and a stack for the C code.
// GS points to the block, because Go does not use GS. An instruction that decode cannot decode ends
// the program by SIGILL. Child processes run without the emulation. If the program opens
// /proc/self/exe, it gets the file amx.
//
// Code in the program's threads must not call libc, because FS does not point to libc's thread
// data. memcpy and similar functions are allowed, but not through a PLT, because libc would resolve
// their addresses.
//
// The results are as defined in Intel's Software Developer's Manual, volume 2, except for the
// payloads of NaNs.

#if !defined(__x86_64__) || !defined(__linux__)

#include <stdio.h>

int main(void) {
	puts("skipped: emulating AMX needs Linux on amd64");
	return 0;
}

#else

#define _GNU_SOURCE
#include <cpuid.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <immintrin.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "amx.h"

// A site is an emulated instruction and the code of its stub. A jump that replaces the instruction
// in the program leads to the stub.
typedef struct {
	instruction in;
	uint8_t code[28];
} site;

enum { SITES = 1 << 16 };

static site *sites; // so close to the program that a jump reaches them; sites[0] holds the address of enter
static int met;

// First bytes of replaced instructions: an illegal instruction, and a jump.

enum { ILLEGAL = 0x06, JUMP = 0xe9 };

enum { CPUIDS = 16 };

static uint8_t *cpuid[CPUIDS]; // addresses of CPUID instructions
static int cpuids;

// everywhere waits until every core executes the changed bytes of the code.
static void everywhere(void) { kernel(SYS_membarrier, 1 << 5, 0, 0, 0); } // PRIVATE_EXPEDITED_SYNC_CORE

static uint8_t *put(uint8_t *to, const void *from, int n) { return (uint8_t *)memcpy(to, from, n) + n; }

// replace overwrites the instruction at p with a jump to a new stub. At any time, other threads
// execute the old instruction, an illegal instruction or the complete jump.
static void replace(uint8_t *p, int length, instruction *in) {
	site *s = &sites[++met]; // the first site of an instruction is sites[1]
	if (met == SITES)
		refuse("amx: too many instructions\n");
	s->in = *in;
	const instruction *of = &s->in;
	uint8_t *c = put(s->code, "\x9c\x50\x48\xb8", 4); // PUSHFQ, PUSHQ AX, MOVQ $of, AX
	c = put(c, &of, 8);
	int32_t far = (uint8_t *)sites - (c + 6);
	c = put(put(c, "\xff\x15", 2), &far, 4); // CALL of enter, whose address is at sites
	c = put(c, "\x58\x9d\xe9", 3);           // POPQ AX, POPFQ, JMP to the next instruction
	far = p + length - (c + 4);
	put(c, &far, 4);
	volatile uint8_t *code = p;
	far = s->code - (p + 5);
	code[0] = ILLEGAL;
	everywhere();
	for (int i = 0; i < 4; i++)
		code[1 + i] = far >> 8 * i;
	everywhere();
	code[0] = JUMP;
	everywhere();
}

// Bits of CPUID leaf 7: the AMX bits in EDX, AVX512_BF16 in EAX of subleaf 1.
enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25, AVX512_BF16 = 1 << 5 };

static void identify(greg_t *g) {
	uint32_t leaf = g[REG_RAX], sub = g[REG_RCX], a, b, c, d;
	__cpuid_count(leaf, sub, a, b, c, d);
	if (leaf == 7 && sub == 0) {
		a = a ? a : 1;
		d |= AMX_BF16 | AMX_TILE | AMX_INT8;
	}
	if (leaf == 7 && sub == 1)
		a |= AVX512_BF16;
	g[REG_RAX] = a, g[REG_RBX] = b, g[REG_RCX] = c, g[REG_RDX] = d;
}

// If the illegal instruction is a replaced CPUID or is emulated, isOurs handles this instruction
// and returns nonzero. Otherwise isOurs returns 0.
static int isOurs(greg_t *g) {
	uint8_t *p = (uint8_t *)g[REG_RIP];
	for (int i = 0; i < cpuids; i++)
		if (p == cpuid[i]) {
			identify(g);
			g[REG_RIP] += 2;
			return 1;
		}
	int32_t far;
	memcpy(&far, p + 1, 4);
	if (p[0] == JUMP && (uint64_t)(p + 5 + far - (uint8_t *)sites) < SITES * sizeof(site))
		return 1; // another thread has already replaced the instruction
	instruction in;
	int length = decode(p, &in);
	if (length)
		replace(p, length, &in);
	return length;
}

static void hex(char *to, uint64_t x) {
	for (int i = 15; i >= 0; i--, x >>= 4)
		to[i] = "0123456789abcdef"[x & 15];
}

static void report(const uint8_t *p) {
	char text[] = "amx: illegal instruction: ________________ at ________________\n";
	uint64_t bytes;
	memcpy(&bytes, p, 8);
	hex(strchr(text, '_'), __builtin_bswap64(bytes));
	hex(strchr(text, '_'), (uint64_t)p);
	kernel(SYS_write, 2, (long)text, sizeof text - 1, 0);
}

static void onIllegal(int number, siginfo_t *info, void *context) {
	(void)number, (void)info;
	static int lock;
	ucontext_t *u = context;
	while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE))
		__builtin_ia32_pause();
	int ours = isOurs(u->uc_mcontext.gregs);
	__atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
	if (ours)
		return;
	report((uint8_t *)u->uc_mcontext.gregs[REG_RIP]);
	sigaddset(&u->uc_sigmask, SIGILL); // the instruction runs again, and the blocked SIGILL then ends the process
}

int force(uint8_t *first, const uint8_t *end) {
	int forced = 0;
	for (uint8_t *p = first; p < end;) {
		instruction in;
		int length = decode(p, &in);
		if (length)
			replace(p, length, &in), forced++;
		p += length ? length : 1;
	}
	return forced;
}

// Startup.

void fail(const char *what, const char *name) {
	fprintf(stderr, "amx: %s: %s\n", name, what);
	exit(125);
}

// prepare allocates memory for stubs, so close to place that a jump reaches them. It installs the
// SIGILL handler.
__attribute__((target("fsgsbase"))) void prepare(uint8_t *place) {
	sites = mmap(place, SITES * sizeof(site), PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (sites == MAP_FAILED || labs((uint8_t *)sites - place) > 1 << 30)
		fail("no memory near the program", "mmap");
	void (*to)(void) = enter;
	memcpy(sites, &to, sizeof to);
	char *blocks = mmap(NULL, (size_t)BLOCKS * BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (blocks == MAP_FAILED)
		fail(strerror(errno), "mmap");
	next_block = (uint64_t)blocks;
	end_of_blocks = next_block + (uint64_t)BLOCKS * BLOCK_BYTES;
	_writegsbase_u64(next_block); // this block belongs to no thread yet
	struct sigaction act = {.sa_sigaction = onIllegal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	sigfillset(&act.sa_mask);
	if (kernel(SYS_membarrier, 1 << 6, 0, 0, 0) || sigaction(SIGILL, &act, NULL)) // REGISTER_PRIVATE_EXPEDITED_SYNC_CORE
		fail("membarrier or sigaction is refused", "prepare");
}

// filter installs a seccomp filter. The program's requests for another SIGILL handler and for
// permission to use AMX then return 0 without effect.
static void filter(void) {
#define WORD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define UNLESS(value, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skip)
	struct sock_filter code[] = {
		WORD(arch), UNLESS(AUDIT_ARCH_X86_64, 11),
		WORD(nr), UNLESS(SYS_rt_sigaction, 3),
		WORD(args[0]), UNLESS(SIGILL, 7),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO), // the system call returns 0 without effect
		UNLESS(SYS_arch_prctl, 5),
		WORD(args[0]), UNLESS(ARCH_REQ_XCOMP_PERM, 3),
		WORD(args[1]), UNLESS(XFEATURE_XTILEDATA, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof code / sizeof *code, code};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		fail(strerror(errno), "seccomp");
}

static void *contents(const char *name) {
	struct stat info;
	int f = open(name, O_RDONLY | O_CLOEXEC);
	void *file = f < 0 || fstat(f, &info) ? MAP_FAILED : mmap(NULL, info.st_size, PROT_READ, MAP_PRIVATE, f, 0);
	if (file == MAP_FAILED)
		fail(strerror(errno), name);
	close(f);
	return file;
}

// patch replaces each CPUID instruction in the given part of the program by an illegal instruction.
// It searches for the machine code of the Go function cpuid. This code is the same in
// golang.org/x/sys/cpu and in Go's standard library.
static void patch(uint8_t *part, size_t size) {
	static const uint8_t whole[] = {
		0x8b, 0x44, 0x24, 0x08, 0x8b, 0x4c, 0x24, 0x0c, // MOVL eaxArg, AX; MOVL ecxArg, CX
		0x0f, 0xa2,                   // CPUID
		0x89, 0x44, 0x24, 0x10, 0x89, 0x5c, 0x24, 0x14, // MOVL AX, eax; MOVL BX, ebx
		0x89, 0x4c, 0x24, 0x18, 0x89, 0x54, 0x24, 0x1c, 0xc3, // MOVL CX, ecx; MOVL DX, edx; RET
	};
	uint8_t *end = part + size, *at = part;
	while ((at = memmem(at, end - at, whole, sizeof whole)) && cpuids < CPUIDS) {
		cpuid[cpuids++] = at + 8;
		at[9] = 0x0b; // UD2
	}
}

// place maps the program at the addresses in its file. It returns the end of the program's memory.
static uint8_t *place(const char *name, uint8_t *file) {
	Elf64_Ehdr *head = (Elf64_Ehdr *)file;
	Elf64_Phdr *parts = (Elf64_Phdr *)(file + head->e_phoff);
	uint64_t end = 0;
	if (memcmp(head->e_ident, ELFMAG, SELFMAG) || head->e_machine != EM_X86_64 || head->e_type != ET_EXEC)
		fail("want a static program for amd64, as CGO_ENABLED=0 go build makes it", name);
	for (int i = 0; i < head->e_phnum; i++) {
		Elf64_Phdr *p = &parts[i];
		if (p->p_type == PT_INTERP)
			fail("want a static program, as CGO_ENABLED=0 go build makes it", name);
		if (p->p_type != PT_LOAD)
			continue;
		uint64_t from = p->p_vaddr & -4096, to = (p->p_vaddr + p->p_memsz + 4095) & -4096;
		void *at = mmap((void *)from, to - from, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		if (at != (void *)from)
			fail("its place in memory is taken", name);
		memcpy((void *)p->p_vaddr, file + p->p_offset, p->p_filesz);
		end = to > end ? to : end;
		if (p->p_flags & PF_X)
			patch((uint8_t *)p->p_vaddr, p->p_filesz);
	}
	if (!cpuids)
		fail("it does not ask for the processor's features as Go does", name);
	for (int i = 0; i < head->e_phnum; i++) {
		Elf64_Phdr *p = &parts[i];
		int code = p->p_flags & PF_X, access = PROT_READ | (code ? PROT_EXEC : 0) | (code || p->p_flags & PF_W ? PROT_WRITE : 0);
		if (p->p_type == PT_LOAD && mprotect((void *)(p->p_vaddr & -4096), p->p_memsz + p->p_vaddr % 4096, access))
			fail(strerror(errno), name);
	}
	return (uint8_t *)end;
}

// run turns this process into the program. The program gets this process's stack (argument count,
// arguments, environment and auxiliary vector) without the first argument.
static void run(int argc, char **argv) {
	uint8_t *file = contents(argv[1]);
	void *entry = (void *)((Elf64_Ehdr *)file)->e_entry;
	prepare(place(argv[1], file));
	filter();
	argv[0] = (char *)(uint64_t)(argc - 1);
	__asm__ volatile("movq %0, %%rsp\n\txorl %%edx, %%edx\n\tjmp *%1" : : "r"(argv), "r"(entry) : "rdx", "memory");
}

// hasAMX reports whether the processor has AMX-BF16 and Linux permits AMX.
static int hasAMX(void) {
	enum { ARCH_GET_XCOMP_SUPP = 0x1021 };
	uint64_t lent = 0;
	unsigned a, b, c, d;
	__cpuid_count(7, 0, a, b, c, d);
	return d & AMX_BF16 && d & AMX_TILE && !syscall(SYS_arch_prctl, ARCH_GET_XCOMP_SUPP, &lent) && lent >> XFEATURE_XTILEDATA & 1;
}

int main(int argc, char **argv) {
	enum { HWCAP2_FSGSBASE = 2 };
	if (argc < 2) {
		fputs("usage: amx program arguments... | amx --test\n", stderr);
		return 2;
	}
	int native = hasAMX(), ask = !strcmp(argv[1], "--test");
	if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))) {
		puts("skipped: emulating AMX needs a processor with AVX-512 F, BW, DQ and VL");
		return 0;
	}
	if (native && !ask) {
		fputs("amx: this processor has AMX: nothing is emulated\n", stderr);
		execv(argv[1], argv + 1);
		fail(strerror(errno), argv[1]);
	}
	if (!(getauxval(AT_HWCAP2) & HWCAP2_FSGSBASE)) {
		puts("skipped: emulating AMX needs FSGSBASE, of Linux 5.9 or later");
		return 0;
	}
	if (ask)
		return test(native);
	run(argc, argv);
}

#endif
