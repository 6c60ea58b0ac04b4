// Declarations that the files of this program share. amx.c describes the program.

#include <stdint.h>

#define HIDDEN __attribute__((visibility("hidden"))) // assembly can address such a symbol directly

// EACH repeats an assembly line for each number in a list of registers. \i in the line is the
// number.
#define EACH(registers, line) "	.irp i, " registers "\n	" line "\n	.endr\n"
#define ALL "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31"

enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 }; // values of Linux's arch_prctl and XCR0

typedef enum { LDTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILESTORED, TDPBF16PS, TDPBUSD, VDPBF16PS, VCVTNE2PS2BF16 } operation;

typedef struct {
	operation op;
	uint8_t dst, a, b;   // registers; dst is the source of TILESTORED
	uint8_t base, index; // registers of a memory operand; 4 means no index
	uint8_t scale;
	int32_t disp;
} instruction;

// decode decodes the instruction at p, stores the result in *in, and returns the instruction's
// length, at least 5 bytes. decode returns 0 for an instruction that is not emulated.
int decode(const uint8_t *p, instruction *in);

// Each thread has its own block of memory for the emulation. On a thread's first emulated
// instruction, enter takes a block from [next_block, end_of_blocks).
enum { BLOCK_BYTES = 32768, BLOCKS = 4096 };
extern uint64_t next_block, end_of_blocks;

// enter is the function that stubs call.
HIDDEN void enter(void);

// kernel makes a system call. It does not use errno, which belongs to libc.
long kernel(long number, long a, long b, long c, long d);

// refuse ends the program by SIGILL, in place of the processor's #UD or #GP.
void refuse(const char *why);

// prepare allocates memory for stubs, so close to place that a jump reaches them. It installs the
// SIGILL handler.
void prepare(uint8_t *place);

// force replaces all instructions in [first, end) that decode can decode, even if the processor has
// them. It returns the number of these instructions. None of them may have been replaced before.
int force(uint8_t *first, const uint8_t *end);

_Noreturn void fail(const char *what, const char *name);

// test tests the emulation and returns the exit status. native is 1 if the processor has AMX.
int test(int native);
