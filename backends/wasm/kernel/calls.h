// Lists of calls. With many short sequences, the host enters the module once for a list of several calls.
// kernel.c includes this file last.
//
// An entry of a list has the number of a function and its arguments. The first argument is a block. The
// function checks all arguments, as in a direct call.

typedef struct { u32 function, block, i0, i1, j0, j1, flags, reserved; } entry; // function is a case number of call()
enum { MAX_CALLS = 1 << 16 };

static int call(const entry *c) {
  switch (c->function) {
    case 0: return export_fwd_simd128_keys(c->block, c->j0, c->j1);
    case 1: return export_fwd_simd128_rows(c->block, c->i0, c->i1, c->j0, c->j1, c->flags);
    case 2: return export_fwd_simd128_feature_rows(c->block, c->i0, c->i1, c->j0, c->j1, c->flags);
    case 3: return export_bwd_simd128_keys(c->block, c->j0, c->j1);
    case 4: return export_bwd_simd128_rows(c->block, c->i0, c->i1, c->j0, c->j1, c->flags);
    case 5: return export_bwd_simd128_feature_rows(c->block, c->i0, c->i1, c->j0, c->j1, c->flags);
    case 6: return export_bwd_grads(c->block, c->j0, c->j1);
  }
  return BAD_RANGE;
}
// calls runs the n calls of a list in order. It stops at the first code other than OK and returns this code,
// else OK.
EXPORT("calls") int export_calls(u32 at, u32 n) {
  int code = OK;
  if (n > MAX_CALLS || !inside(at, (u64)n * sizeof(entry))) return BAD_BLOCK;
  for (const entry *c = AT(at), *end = c + n; c != end && code == OK; c++) code = call(c);
  return code;
}
