// What kernel.c needs of a native machine: offsets count from native_memory.
#include <xmmintrin.h>

extern char *native_memory;
extern u64 native_bytes;

#define LOWEST 64
#define MEMORY native_bytes
#define AT(offset) ((void *)(native_memory + (offset)))
#define REGISTER "+x"
#define EXPORT(name)
INLINE v4 min4(v4 a, v4 b) { return (v4)_mm_min_ps((__m128)b, (__m128)a); }
INLINE v4 max4(v4 a, v4 b) { return (v4)_mm_max_ps((__m128)b, (__m128)a); }
