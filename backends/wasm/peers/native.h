// Native definitions for kernel.c. An offset is relative to native_memory.
#include <emmintrin.h>

extern char *native_memory;
extern u64 native_bytes;

#define LOWEST 64
#define MEMORY native_bytes
#define AT(offset) ((void *)(native_memory + (offset)))
#define REGISTER "+x"
#define EXPORT(name)
INLINE v4 min4(v4 a, v4 b) { return (v4)_mm_min_ps((__m128)b, (__m128)a); }
INLINE v4 max4(v4 a, v4 b) { return (v4)_mm_max_ps((__m128)b, (__m128)a); }
INLINE u4 dot16(u4 a, u4 b) { return (u4)_mm_madd_epi16((__m128i)a, (__m128i)b); }
INLINE u4 narrow(i4 a, i4 b, i4 c, i4 d) {
  return (u4)_mm_packs_epi16(_mm_packs_epi32((__m128i)a, (__m128i)b), _mm_packs_epi32((__m128i)c, (__m128i)d));
}
