// Instances of bwd_sm90 for ranges of keys: see bwd_sm90.cu. A block visits only the tiles of rows that see its keys. They also
// support padded and packed sequences and sinks. The delta kernel also finds the bounds of the ranges of each 64 rows.
#include "bwd_sm90_loop.cuh"

#define RANGES(type, T)                                                                        \
    ENDS(bwd_sm90_features, FeatureParams, true, true, x.p, x.f, ranges_##type, T)              \
    FEATURES(_ranges, kLayout | kRanges, type, T, 1)
RANGES(bf16, BF16)
RANGES(f16, F16)
