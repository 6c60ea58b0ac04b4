// What the files of this program share. See amx.c.

#include <stdint.h>

#define HIDDEN __attribute__((visibility("hidden"))) // for use in assembly

// Lines of assembly for each of a list of registers, \i.
#define EACH(registers, line) "	.irp i, " registers "\n	" line "\n	.endr\n"
#define ALL "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31"

enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 }; // of Linux

typedef enum { LDTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILESTORED, TDPBF16PS, VDPBF16PS, VCVTNE2PS2BF16 } operation;

typedef struct {
	operation op;
	uint8_t dst, a, b;   // registers; dst is what TILESTORED stores
	uint8_t base, index; // of memory; 4 is no index
	uint8_t scale;
	int32_t disp;
} instruction;

// decode returns the length of an instruction that is emulated, or 0. It is at least 5.
int decode(const uint8_t *p, instruction *in);

// A thread emulates in a block of memory of its own, which enter takes from here.
enum { BLOCK_BYTES = 32768, BLOCKS = 4096 };
extern uint64_t next_block, end_of_blocks;

// enter is what stubs call.
HIDDEN void enter(void);

// kernel calls Linux without libc's errno.
long kernel(long number, long a, long b, long c, long d);

// refuse ends the program by SIGILL: it did what the processor answers by #UD or #GP.
void refuse(const char *why);

// prepare allots what jumps from code near a place lead to, and takes SIGILL.
void prepare(uint8_t *place);

// force emulates what is known from first to end, be the processor able or not, and
// returns the number of these instructions. None that was met before is among them.
int force(uint8_t *first, const uint8_t *end);

// fail ends this program before the other one starts.
_Noreturn void fail(const char *what, const char *name);

// test returns a status. native says that the processor has AMX.
int test(int native);
