// What a test builds to see how Go's calls arrive in C: the functions of NCCL with nccl.h's types, which
// say in ncclGetLastError what they were given.
#include <stdio.h>
#include <string.h>

typedef struct { char internal[128]; } ncclUniqueId;
typedef struct ncclComm { int code; } *ncclComm_t;
typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking, cgaClusterSize, minCTAs, maxCTAs;
  const char *netName;
  int splitShare;
} ncclConfig_t;

static char last[4096];
static struct ncclComm comm;

int ncclGetVersion(int *v) { *v = ABI_VERSION; return 0; }
const char *ncclGetErrorString(int code) { return code == 4 ? "invalid argument" : "told"; }
const char *ncclGetLastError(ncclComm_t c) { return last; }

int ncclGetUniqueId(ncclUniqueId *id) {
  for (int i = 0; i < 128; i++) id->internal[i] = (char)(i + 1);
  return 0;
}

int ncclCommInitRankConfig(ncclComm_t *c, int ranks, ncclUniqueId id, int rank, ncclConfig_t *o) {
  int wrong = 0;
  for (int i = 0; i < 128; i++) wrong += id.internal[i] != (char)(i + 1);
  *c = &comm;
  comm.code = 7;
  snprintf(last, sizeof last, "ranks %d rank %d wrong %d size %zu magic %x version %u blocking %d cluster %d ctas %d to %d net %p share %d", ranks, rank,
           wrong, o->size, o->magic, o->version, o->blocking, o->cgaClusterSize, o->minCTAs, o->maxCTAs, (void *)o->netName, o->splitShare);
  return 7;
}

int ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *split, ncclConfig_t *o) {
  *split = &comm;
  snprintf(last, sizeof last, "comm %d color %d key %d size %zu magic %x version %u blocking %d ctas to %d share %d", c == &comm, color, key, o->size,
           o->magic, o->version, o->blocking, o->maxCTAs, o->splitShare);
  return 7;
}

int ncclCommGetAsyncError(ncclComm_t c, int *code) {
  *code = c->code;
  if (c->code == 7) c->code = 0;
  return c == &comm ? 0 : 4;
}

static int told(const char *what, const void *p, size_t n, int type, int peer, ncclComm_t c, void *stream) {
  snprintf(last, sizeof last, "%s %p %zu bytes of type %d rank %d comm %d stream %p", what, p, n, type, peer, c == &comm, stream);
  return 6;
}
int ncclSend(const void *p, size_t n, int type, int peer, ncclComm_t c, void *s) { return told("send", p, n, type, peer, c, s); }
int ncclRecv(void *p, size_t n, int type, int peer, ncclComm_t c, void *s) { return told("receive", p, n, type, peer, c, s); }

static int depth;
int ncclGroupStart(void) { depth++; return 0; }
int ncclGroupEnd(void) { return --depth == 0 ? 7 : 5; }
int ncclCommFinalize(ncclComm_t c) { return c == &comm ? 7 : 4; }
int ncclCommDestroy(ncclComm_t c) { return c == &comm ? 0 : 4; }
int ncclCommAbort(ncclComm_t c) { return c == &comm ? 0 : 4; }
