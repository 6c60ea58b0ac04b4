// Philox4x32-7 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011).
__device__ __forceinline__ uint4 philox(uint4 c, uint32_t k0, uint32_t k1) {
#pragma unroll
    for (int i = 0; i < 7; i++) {
        const uint64_t a = (uint64_t)0xD2511F53 * c.x, b = (uint64_t)0xCD9E8D57 * c.z;
        c = {(uint32_t)(b >> 32) ^ c.y ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c.w ^ k1, (uint32_t)a};
        k0 += 0x9E3779B9, k1 += 0xBB67AE85;
    }
    return c;
}

// The random words of keys j/8*8 to j/8*8+7 of row i: the lower halves are the numbers of the first four, the upper ones of the others.
__device__ __forceinline__ uint4 random_words(const Features &f, int b, int h, int i, int j) {
    return philox({(j + f.first_key) >> 3, i + f.first_row, h + f.first_head, b + f.first_batch}, f.seed[0], f.seed[1]);
}

// Bit e of the result says that dropout drops key e of those eight. `below` is 0 in its lower half.
__device__ __forceinline__ uint32_t drops_of(uint4 w, uint32_t below) {
    const uint32_t words[4] = {w.x, w.y, w.z, w.w};
    uint32_t dropped = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) dropped |= (words[e] << 16 < below) << e | (words[e] < below) << (e + 4);
    return dropped;
}

// Bit 8 r + j of the result says that dropout drops key j of eight of row r; a lane of a quad brings those of row t % 4 of four.
__device__ __forceinline__ uint32_t quad_drops(uint32_t mine) {
    mine <<= 8 * (threadIdx.x % 4);
    mine |= __shfl_xor_sync(~0u, mine, 1);
    return mine | __shfl_xor_sync(~0u, mine, 2);
}

template <class Tiles> constexpr int count_of = 0;
template <int n> constexpr int count_of<float[n][4]> = n;
struct Scores { const Features &f; int b, h;
    // Gives the weights that dropout drops the sign -, from which dropped and kept tell
    // them again, or makes them zeros: P is positive, and a NaN that the tensor cores or exp2 make is too.
    template <bool transposed, bool zeros = false, class Tiles> __device__ __forceinline__ void drop(Tiles &s, int own, int walked) const {
        if (!f.drop_below) return;
#pragma unroll
        for (int n = 0; n < count_of<Tiles>; n += 2) {
            const uint32_t dropped = drops<transposed>(own, walked + 8 * n);
#pragma unroll
            for (int i = n; i < n + 2 && i < count_of<Tiles>; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const uint32_t bit = dropped >> (8 * e + i - n);
                    s[i][e] = zeros && bit & 1 ? 0 : __uint_as_float(__float_as_uint(s[i][e]) | (zeros ? 0 : bit << 31));
                }
        }
    }
    // Bit 8 e + n of the result says that dropout drops weight e of the lane's four of the n-th of two times 8 columns. A
    // random counter serves eight keys of a row, which lanes have that tell each other: those of a quad, or, transposed, eight.
    template <bool transposed> __device__ __forceinline__ uint32_t drops(int own, int walked) const {
        const int lane = threadIdx.x % 32, t = lane % 4, g = lane / 4;
        if constexpr (transposed) {
            uint32_t mine = drops_of(random_words(f, b, h, walked + g / 4 * 8 + g % 2, own - g + g / 2 % 2 * 8), f.drop_below) << 8 * (g % 4);
            mine |= __shfl_xor_sync(~0u, mine, 4);
            mine |= __shfl_xor_sync(~0u, mine, 8); // of 8 columns
            const uint32_t other = __shfl_xor_sync(~0u, mine, 16);
            const uint32_t first = g < 4 ? mine : other, second = g < 4 ? other : mine;
            return (first >> g & 0x01010101) | (second >> g & 0x01010101) << 1;
        }
        const uint32_t all = quad_drops(drops_of(random_words(f, b, h, own + t / 2 * 8, walked - 2 * t + t % 2 * 8), f.drop_below)) >> 2 * t;
        uint32_t dropped = 0;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t two = all >> (e / 2 * 16 + e % 2); // bits 0 and 8
            dropped |= (two & 1 | two >> 7 & 2) << 8 * e;
        }
        return dropped;
    }
};


// What a number is at most that drops its weight, and the negative of that, in both halves.
struct Limit {
    uint32_t most, less;
    __device__ __forceinline__ Limit(uint32_t below) { // which is not 0
        const uint32_t x = (below >> 16) - 1;
        most = x * 0x10001, less = __vneg2(most);
    }
};
// New bits 0 and 16 of kept, which moves up, say whether the lower and the upper half of a word keep their weights.
__device__ __forceinline__ void push_kept(uint32_t &kept, uint32_t word, Limit x) { kept = 2 * kept + __viaddmin_u16x2(__vmaxu2(word, x.most), x.less, 0x10001); }

// Philox in parts. Of a counter {key / 8, row, head, batch} the first three rounds make most products of the key or of
// the row alone: x and y of the third round's words are hi(b) ^ key.y and lo(b), with b = M1 (row.x ^ key.x), z and w
// row.y ^ key.z and key.w.
constexpr uint32_t kPhilox0 = 0xD2511F53, kPhilox1 = 0xCD9E8D57, kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
__device__ __forceinline__ uint32_t high(uint64_t x) { return x >> 32; }
struct Counter { uint32_t seed[2], batch, head, row, keys; };
__device__ __forceinline__ Counter counter_of(const Features &f, int b, int h, int i, int j) {
    return {{f.seed[0], f.seed[1]}, b + f.first_batch, h + f.first_head, i + f.first_row, (j + f.first_key) >> 3};
}
__device__ __forceinline__ uint4 key_words(const Counter &c) {
    const uint64_t y = (uint64_t)kPhilox1 * c.head, a = (uint64_t)kPhilox0 * c.keys;
    const uint64_t z = (uint64_t)kPhilox1 * (high(a) ^ c.batch ^ c.seed[1]);
    const uint64_t x = (uint64_t)kPhilox0 * (high(z) ^ (uint32_t)y ^ (c.seed[0] + kWeyl0));
    return {(uint32_t)a ^ (c.seed[1] + kWeyl1), (uint32_t)z ^ (c.seed[0] + 2 * kWeyl0), high(x) ^ (c.seed[1] + 2 * kWeyl1), (uint32_t)x};
}
__device__ __forceinline__ uint64_t row_words(const Counter &c) { return (uint64_t)kPhilox0 * (high((uint64_t)kPhilox1 * c.head) ^ c.row ^ c.seed[0]); }

// The words of so many counters, side by side; between(i) is called after each of five steps.
template <int n, class F> __device__ __forceinline__ void last_rounds(uint4 (&c)[n], uint64_t row, const uint32_t (&seed)[2], F between) {
    each<n>([&](int i) {
        const uint64_t y = (uint64_t)kPhilox1 * (high(row) ^ c[i].x);
        c[i] = {high(y) ^ c[i].y, (uint32_t)y, (uint32_t)row ^ c[i].z, c[i].w};
    });
    between(0);
    each<4>([&](int r) {
        const uint32_t k0 = seed[0] + (3 + r) * kWeyl0, k1 = seed[1] + (3 + r) * kWeyl1;
        each<n>([&](int i) {
            const uint64_t a = (uint64_t)kPhilox0 * c[i].x, b = (uint64_t)kPhilox1 * c[i].z;
            c[i] = {high(b) ^ c[i].y ^ k0, (uint32_t)b, high(a) ^ c[i].w ^ k1, (uint32_t)a};
        });
        between(1 + r);
    });
}

// Forward: which weights dropout keeps of the lane's rows `row` and `row`+8 and the tile's keys from `key` on: bit
// 16 i + 2 j + e of a row is that of its key 8 (2 j + i) + e, counted from the lane's first. A random counter serves eight keys of a row, which
// four lanes have that give each other what they made. What the keys bring to their counters goes through the warp's part of
// shared memory. between(i) is called 5 keys / 16 / once times.
template <int keys, int once, class F> __device__ __forceinline__ void kept_keys(uint32_t (&kept)[2], const Features &f, uint32_t side, int b, int h, int row, int key, int lane, F between) {
    const int t = lane % 4;
    const bool odd = t & 1, upper = t & 2;
    __syncwarp(); // all lanes have read
    if (lane < keys / 8) {
        const uint4 x = key_words(counter_of(f, b, h, row, key + 8 * lane));
        shared_mem[(side + 16 * lane) / 16] = x;
    }
    __syncwarp(); // all have written
    const Counter mine = counter_of(f, b, h, row + t % 2 * 8, key);
    const uint64_t own = row_words(mine);
    const Limit limit(f.drop_below);
    uint32_t x = 0, y = 0; // of the counters' keys 0, 1 and 4, 5; of the others
    each<keys / 16 / once>([&](int i) {
        uint4 c[once];
        each<once>([&](int j) {
            c[j] = shared_mem[(side + (2 * (keys / 16 - 1 - i * once - j) + t / 2) * 16) / 16];
        });
        last_rounds(c, own, mine.seed, [&](int r) { between(5 * i + r); });
        each<once>([&](int j) { push_kept(x, c[j].y, limit), push_kept(x, c[j].x, limit), push_kept(y, c[j].w, limit), push_kept(y, c[j].z, limit); });
    });
    const uint32_t low = 0x5410, high = 0x7632; // halves
    const uint32_t mine2 = __byte_perm(x, y, upper ? high : low), got = __shfl_xor_sync(~0u, __byte_perm(x, y, upper ? low : high), 2);
    const uint32_t which = (odd ? high : low) ^ (upper ? 0x4444 : 0); // the first of the two lanes' halves first
    const uint32_t same = __byte_perm(mine2, got, which), other = __shfl_xor_sync(~0u, __byte_perm(mine2, got, which ^ 0x2222), 1);
    kept[0] = odd ? other : same, kept[1] = odd ? same : other;
}
template <int keys> __device__ __forceinline__ void keep_pairs(float (&s)[keys / 2], const uint32_t (&kept)[2]) {
    each<keys / 2>([&](int i) {
        constexpr int blocks = keys / 8;
        const int r = i / (2 * blocks), half = i / blocks % 2, bit = i % blocks; // in the order of the bits
        float &x = s[(bit / 2 * 2 + half) * 4 + 2 * r + bit % 2];
        x = kept[r] & 1u << (16 * half + bit) ? x : 0;
    });
}

// Backward: which weights dropout keeps, of a tile of rows from `row`, the lane's first, and of its keys `key` and
// `key`+8: bit kept_bit<rows>(i, j) of a key is that of row 16 i + 8 (j / 2) + j % 2. A random counter serves eight keys of a row, which
// eight lanes have that give each other what they made: each draws for a quarter of the rows, and the first or the last eight keys.
template <int rows> __device__ __forceinline__ constexpr int kept_bit(int i, int j) { return 512 / rows * i + j; }
template <int rows> __device__ __forceinline__ void kept_pairs(uint32_t (&kept)[2], const Features &f, int b, int h, int row, int key) {
    const int g = threadIdx.x % 32 / 4;
    const Limit limit(f.drop_below);
    uint32_t x[4] = {}; // of the counter's keys j and j + 4
    each<rows / 16>([&](int n) {
        const int i = rows / 16 - 1 - n; // the last first
        const uint4 w = random_words(f, b, h, row + (g % 2 * 2 + g / 4) * (rows / 4) + 16 * (i / 4) + 8 * (i / 2 % 2) + i % 2, key - g + g / 2 % 2 * 8);
        push_kept(x[0], w.x, limit), push_kept(x[1], w.y, limit), push_kept(x[2], w.z, limit), push_kept(x[3], w.w, limit);
    });
    // Step by step, lanes that differ in a bit of g give each other the bytes of those keys that the other one is nearer to.
    const uint32_t low = 0x5410, high = 0x7632; // halves
    auto swap = [&](uint32_t x, uint32_t y, uint32_t mine, uint32_t flip, int lanes, uint32_t &got) {
        got = __shfl_xor_sync(~0u, __byte_perm(x, y, mine ^ flip), lanes);
        return __byte_perm(x, y, mine);
    };
    uint32_t got, x2, y2;
    const uint32_t x1 = swap(x[0] + (x[1] << 8), x[2] + (x[3] << 8), g & 4 ? high : low, 0x2222, 16, got);
    x2 = swap(x1, got, (g & 2 ? high : low) ^ (g & 4 ? 0x4444 : 0), 0x2222, 8, y2);
    const uint32_t x3 = swap(x2, y2, (g & 1 ? 0x7531 : 0x6420) ^ (g & 2 ? 0x4444 : 0), 0x1111, 4, got);
    const uint32_t first = g & 1 ? got : x3, last = g & 1 ? x3 : got;
    kept[0] = __byte_perm(first, last, low), kept[1] = __byte_perm(first, last, high);
}
