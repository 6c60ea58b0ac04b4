// Declarations shared by the files of this program. See amx.c.

#include <stdint.h>

#define HIDDEN __attribute__((visibility("hidden"))) // for use in assembly

// Assembly lines for each of a list of registers, \i.
#define EACH(registers, line) "	.irp i, " registers "\n	" line "\n	.endr\n"
#define ALL "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31"

enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 }; // of Linux

typedef enum { LDTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILESTORED, TDPBF16PS, VDPBF16PS, VCVTNE2PS2BF16 } operation;

typedef struct {
	operation op;
	uint8_t dst, a, b;   // registers; dst is the source of TILESTORED
	uint8_t base, index; // of memory; 4 means no index
	uint8_t scale;
	int32_t disp;
} instruction;

// decode returns the length of an emulated instruction, at least 5, or 0.
int decode(const uint8_t *p, instruction *in);

// Each thread emulates in its own block of memory. enter allocates it here.
enum { BLOCK_BYTES = 32768, BLOCKS = 4096 };
extern uint64_t next_block, end_of_blocks;

// enter is the target of stubs.
HIDDEN void enter(void);

// kernel calls Linux without libc's errno.
long kernel(long number, long a, long b, long c, long d);

// refuse ends the program by SIGILL, in place of the processor's #UD or #GP.
void refuse(const char *why);

// prepare allocates stubs within jump distance of place and installs the SIGILL handler.
void prepare(uint8_t *place);

// force replaces all emulated instructions in [first, end), even if the processor has them, and
// returns their number. None may have been replaced before.
int force(uint8_t *first, const uint8_t *end);

_Noreturn void fail(const char *what, const char *name);

// test returns an exit status. native means that the processor has AMX.
int test(int native);
