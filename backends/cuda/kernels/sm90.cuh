// Instructions that only compute capability 9.0a has, one function each.
#pragma once
#include "mma.cuh"

// A tensor map, encoded by cuTensorMapEncodeTiled.
struct alignas(64) TensorMap {
    char opaque[128];
};

// Barriers (mbarrier) in shared memory, 8 bytes each. barrier_wait returns when the phase of
// the given parity is complete: all threads have arrived, and all expected bytes have come.
__device__ __forceinline__ void barrier_init(uint32_t b, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint32_t b, int bytes) { // also arrives
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t b, int parity) {
    asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra.uni again;}" ::"r"(b),
                 "r"(parity) : "memory");
}
// Makes initialized barriers visible to bulk copies and to other blocks of the cluster.
__device__ __forceinline__ void barrier_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Waits at one of the block's sixteen named barriers for `threads` threads.
__device__ __forceinline__ void named_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Like named_barrier, but warps may wait at different instructions. PTX allows this with bar.sync, too, but compute-sanitizer
// then reports an error.
__device__ __forceinline__ void meeting_barrier(int id, int threads) {
    asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_arrive(int id, int threads) { // does not wait
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Calls f(0) to f(n-1) in an unrolled loop, so that arrays indexed by the argument can stay in registers.
template <int n, class F> __device__ __forceinline__ void each(F f) {
#pragma unroll
    for (int i = 0; i < n; i++) f(i);
}

// Returns x, which is equal in all lanes, in a uniform register. The descriptors of wgmma and the bounds of loops must be in
// uniform registers.
template <class T> __device__ __forceinline__ T uniform(T x) { return __shfl_sync(~0u, x, 0); }

// A compile-time number as an argument of a lambda.
template <int n> struct Count {
    static constexpr int value = n;
};

// The index of a stage in a ring, and the parity of the phase of the stage's barriers. The parity flips after every round
// through the ring.
template <int stages> struct Ring {
    int stage = 0, parity;
    __device__ explicit Ring(int parity) : parity(parity) {}
    __device__ __forceinline__ void next() {
        if (++stage == stages) stage = 0, parity ^= 1;
    }
};

// Clusters. cluster_meet waits for all blocks of the cluster and makes their earlier writes visible. map_cluster returns the
// address of the same place in another block's shared memory, for load_cluster and store_cluster.
__device__ __forceinline__ int cluster_rank() {
    int x;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(x));
    return x;
}
__device__ __forceinline__ void cluster_meet() { asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive;" ::: "memory"); } // does not wait
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait;" ::: "memory"); }
__device__ __forceinline__ uint32_t map_cluster(uint32_t address, int block) {
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(address), "r"(block));
    return address;
}
__device__ __forceinline__ int load_cluster(uint32_t from) {
    int x;
    asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
    return x;
}
__device__ __forceinline__ void store_cluster(uint32_t to, float a, float b, float c, float d) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}

// Arrives at a barrier of another block of the cluster and releases earlier writes, which barrier_wait_cluster acquires.
__device__ __forceinline__ void barrier_arrive_cluster(uint32_t b) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(b) : "memory");
}
__device__ __forceinline__ void barrier_wait_cluster(uint32_t b, int parity) {
    asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1; @!p bra.uni again;}" ::"r"(b),
                 "r"(parity) : "memory");
}
// Prefetches a tensor map into the descriptor cache.
__device__ __forceinline__ void map_prefetch(const TensorMap &map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

// Programmatic dependent launch: the stream's next kernel may start once all blocks have called launch_dependents.
// wait_for_dependency waits until the previous kernel has ended and its writes are visible.
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void wait_for_dependency() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Starts the copy of the box at (column, row, head, batch) to shared memory. Barrier b counts the bytes as they arrive.
__device__ __forceinline__ void box_load(uint32_t to, const TensorMap &map, int column, int row, int head, int batch, uint32_t b) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2,%3,%4,%5}], [%6];" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(b) : "memory");
}
// Starts the copy of a box from shared memory to the tensor. Elements outside the tensor are not written.
__device__ __forceinline__ void box_store(const TensorMap &map, int column, int row, int head, int batch, uint32_t from) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1,%2,%3,%4}], [%5];" ::"l"(&map), "r"(column), "r"(row),
                 "r"(head), "r"(batch), "r"(from) : "memory");
}
// bulk_load, bulk_store and bulk_add start copies of contiguous bytes. The number of bytes is a multiple of 16. bulk_add adds
// floats to global memory.
__device__ __forceinline__ void bulk_load(uint32_t to, const void *from, int bytes, uint32_t b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
                 "r"(b) : "memory");
}
__device__ __forceinline__ void bulk_store(void *to, uint32_t from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bulk_add(float *to, uint32_t from, int bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); } // afterwards the sources may be overwritten
__device__ __forceinline__ void store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Orders this thread's writes to shared memory before later bulk copies and wgmma.
__device__ __forceinline__ void async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void store_matrix(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) { // load_matrix's inverse
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// Like store_matrix, transposed.
__device__ __forceinline__ void store_matrix_transposed(uint32_t address, const uint32_t (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t to, float a, float b, float c, float d) {
    asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}

// Set the number of registers per thread. All threads of a warpgroup must make the same call.
template <int n> __device__ __forceinline__ void registers_shrink() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n)); }
template <int n> __device__ __forceinline__ void registers_grow() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n)); }

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory"); }

// Returns wgmma's descriptor of a matrix in shared memory. The matrix has rows of 64
// elements and is aligned to 1024 bytes; chunk c of 16 bytes of row r is stored as chunk
// c ^ r%8. One wgmma sums 16 terms. If sums are over a row (of Q or K), the operand of the next
// 16 terms is 32 bytes further. If sums are over a column (of V), the next operand is 2048 bytes
// further. Panels of 64 columns of V are `panel` bytes apart.
__device__ __forceinline__ uint64_t descriptor(uint32_t address, int panel) {
    return (address & 0x3ffff) >> 4 | (uint64_t)(panel >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

// Returns a bit mask of the lane's columns of wgmma's result that are before column x. Columns are counted from the lane's
// first column. Bit 2 i + j (j: 0 or 1) is for column 8 i + j. Tests of mask bits take fewer instructions than comparisons of
// columns.
__device__ __forceinline__ uint32_t columns_before(int x) {
    const int n = min(max(x, 0), 128);
    return (1ull << (n / 8 * 2 + min(n % 8, 2))) - 1;
}

// Starts a warpgroup's product d = a b or, if `add`, d += a b. The product is complete after
// wgmma_wait. The matrix a is 64x16, and the matrix b is 16xN, where N is twice the length of d.
// Sums are float32. Argument x is matrix a in registers or its descriptor. Argument y is the
// descriptor of matrix b, which is row-major if `by_rows`, else column-major.
#define WGMMA_ASM(type, n, list, a, b, p, tail, in) \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " p ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type \
                 " {" list "}, " a ", " b ", p, 1, 1, " tail ";}" : OUT_##n : in, "l"(y), "r"((int)add), "n"(by_rows))
#define WGMMA(n, list, a, b, p, t, a2, b2, p2, t2)                                                                                      \
    template <class T, int by_rows>                                                                                                     \
    __device__ __forceinline__ void wgmma(float (&d)[n / 2], const uint32_t (&x)[4], uint64_t y, bool add) {                            \
        if constexpr (is_bf16<T>) WGMMA_ASM("bf16", n, list, a, b, p, t, IN4);                                                \
        else WGMMA_ASM("f16", n, list, a, b, p, t, IN4);                                                                                \
    }                                                                                                                                   \
    template <class T, int by_rows> __device__ __forceinline__ void wgmma(float (&d)[n / 2], uint64_t x, uint64_t y, bool add) {        \
        if constexpr (is_bf16<T>) WGMMA_ASM("bf16", n, list, a2, b2, p2, "0, " t2, "l"(x));                                   \
        else WGMMA_ASM("f16", n, list, a2, b2, p2, "0, " t2, "l"(x));                                                                   \
    }
template <class T> constexpr bool is_bf16 = false;
template <> constexpr bool is_bf16<BF16> = true;
#define IN4 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
#define OUT(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define OUT_64 OUT(0), OUT(8), OUT(16), OUT(24)
#define OUT_80 OUT_64, OUT(32)
#define OUT_96 OUT_80, OUT(40)
#define OUT_112 OUT_96, OUT(48)
#define OUT_128 OUT_112, OUT(56)
#define OUT_192 OUT_128, OUT(64), OUT(72), OUT(80), OUT(88)
#define OUT_256 OUT_192, OUT(96), OUT(104), OUT(112), OUT(120)
#define LIST_64 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define LIST_80 LIST_64 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define LIST_96 LIST_80 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define LIST_112 LIST_96 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define LIST_128 LIST_112 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define LIST_192                                                                                                              \
    LIST_128 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define LIST_256                                                                                                              \
    LIST_192 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
WGMMA(64, LIST_64, "{%32,%33,%34,%35}", "%36", "%37", "%38", "%32", "%33", "%34", "%35")
WGMMA(80, LIST_80, "{%40,%41,%42,%43}", "%44", "%45", "%46", "%40", "%41", "%42", "%43")
WGMMA(96, LIST_96, "{%48,%49,%50,%51}", "%52", "%53", "%54", "%48", "%49", "%50", "%51")
WGMMA(112, LIST_112, "{%56,%57,%58,%59}", "%60", "%61", "%62", "%56", "%57", "%58", "%59")
WGMMA(128, LIST_128, "{%64,%65,%66,%67}", "%68", "%69", "%70", "%64", "%65", "%66", "%67")
WGMMA(192, LIST_192, "{%96,%97,%98,%99}", "%100", "%101", "%102", "%96", "%97", "%98", "%99")
WGMMA(256, LIST_256, "{%128,%129,%130,%131}", "%132", "%133", "%134", "%128", "%129", "%130", "%131")

// For each of two packed elements, returns 0 x + y: y if x is finite, else NaN.
template <class T> __device__ __forceinline__ uint32_t zero_times(uint32_t x, uint32_t y) {
    if constexpr (is_bf16<T>) asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(y) : "r"(x), "r"(0));
    else asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(y) : "r"(x), "r"(0));
    return y;
}
