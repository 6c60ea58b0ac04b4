// A stand-in for cuBLAS on the host. Functions check their arguments as cublas_v2.h declares them.
#include <stddef.h>

static int handle, stream;

int cublasCreate_v2(void **h) { *h = &handle; return 0; }
int cublasDestroy_v2(void *h) { return h == &handle ? 0 : 1; }
int cublasSetStream_v2(void *h, void *s) { stream = s == (void *)0x1234; return h == &handle ? 0 : 1; }
int cublasSetMathMode(void *h, int mode) { return h == &handle && mode == 0 ? 0 : 7; }
int cublasGetVersion_v2(void *h, int *version) { *version = 130100; return h == &handle ? 0 : 1; }
const char *cublasGetStatusString(int status) { return status == 7 ? "an invalid value" : "not initialized"; }

// C = alpha op(A) op(B) + beta C by columns, for A transposed and B plain.
int cublasSgemm_v2(void *h, int ta, int tb, int m, int n, int k, const float *alpha, const float *a, int lda, const float *b, int ldb,
                   const float *beta, float *c, int ldc) {
    if (h != &handle || !stream) return 1;
    if (ta != 1 || tb != 0 || m < 1 || n < 1 || k < 1 || lda < k || ldb < k || ldc < m) return 7;
    for (int j = 0; j < n; j++)
        for (int i = 0; i < m; i++) {
            float sum = 0;
            for (int l = 0; l < k; l++) sum += a[i * lda + l] * b[j * ldb + l];
            c[j * ldc + i] = *alpha * sum + (*beta == 0 ? 0 : *beta * c[j * ldc + i]);
        }
    return 0;
}
