/*
 * Attention on tensors in GPU memory, in a CUDA stream of the program. The example loads the CUDA
 * driver at run time, so that it compiles and starts without CUDA. Programs that include cuda.h or
 * cuda_runtime.h call flashkit in the same way.
 *
 *     cc cuda.c $(pkg-config --cflags --libs flashkit) -ldl -lm -o cuda && ./cuda
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <flashkit.h>

/* The functions of the driver. They take a device address as an integer. */
static struct {
	int (*init)(unsigned);
	int (*retain)(void **context, int device);
	int (*set_current)(void *context);
	int (*alloc)(unsigned long long *at, size_t bytes);
	int (*release)(unsigned long long at);
	int (*upload)(unsigned long long to, const void *from, size_t bytes, void *stream);
	int (*download)(void *to, unsigned long long from, size_t bytes, void *stream);
	int (*stream_new)(void **stream, unsigned flags);
	int (*stream_wait)(void *stream);
	int (*stream_free)(void *stream);
} cu;

static int load(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	struct { void *to; const char *name; } list[] = {
		{&cu.init, "cuInit"}, {&cu.retain, "cuDevicePrimaryCtxRetain"}, {&cu.set_current, "cuCtxSetCurrent"},
		{&cu.alloc, "cuMemAlloc_v2"}, {&cu.release, "cuMemFree_v2"}, {&cu.upload, "cuMemcpyHtoDAsync_v2"},
		{&cu.download, "cuMemcpyDtoHAsync_v2"}, {&cu.stream_new, "cuStreamCreate"},
		{&cu.stream_wait, "cuStreamSynchronize"}, {&cu.stream_free, "cuStreamDestroy_v2"},
	};
	for (size_t i = 0; i < sizeof list / sizeof *list; i++)
		if (library == NULL || (*(void **)list[i].to = dlsym(library, list[i].name)) == NULL)
			return 0;
	return cu.init(0) == 0;
}

/*
 * begin makes the primary context of GPU 0 current. flashkit uses this context, as the CUDA runtime
 * does.
 */
static int begin(void)
{
	void *context;
	return cu.retain(&context, 0) == 0 && cu.set_current(context) == 0;
}

enum { HEADS = 8, LEN = 512, DIM = 64, SIZE = HEADS * LEN * DIM, BYTES = SIZE * (int)sizeof(float) };

static float q[SIZE], k[SIZE], v[SIZE], o[SIZE], want[SIZE];

static fk_args arguments(void *at_q, void *at_k, void *at_v, void *at_o, int32_t device)
{
	fk_args a = fk_args_init();
	a.q = fk_dense(at_q, FK_F32, 1, HEADS, LEN, DIM);
	a.k = fk_dense(at_k, FK_F32, 1, HEADS, LEN, DIM);
	a.v = fk_dense(at_v, FK_F32, 1, HEADS, LEN, DIM);
	a.o = fk_dense(at_o, FK_F32, 1, HEADS, LEN, DIM);
	a.q.device = a.k.device = a.v.device = a.o.device = device;
	return a;
}

int main(void)
{
	fk_error err = fk_error_init();
	fk_dispatcher *gpu, *cpu;
	void *stream;
	unsigned long long at[4];
	if (!load())
		return puts("skipped: no CUDA driver"), 0;
	if (fk_open("cuda", 0, &gpu, &err) != FK_OK)
		return printf("skipped: %s\n", err.message), 0;
	if (!begin() || cu.stream_new(&stream, 1) != 0)
		return puts("the driver failed"), 1;
	for (int i = 0; i < SIZE; i++) {
		q[i] = (float)(i % 13) / 13;
		k[i] = (float)(i % 17) / 17;
		v[i] = (float)(i % 11) / 11;
	}
	for (int i = 0; i < 4; i++)
		if (cu.alloc(&at[i], BYTES) != 0)
			return puts("the device is full"), 1;
	cu.upload(at[0], q, BYTES, stream);
	cu.upload(at[1], k, BYTES, stream);
	cu.upload(at[2], v, BYTES, stream);

	void *where[4];
	for (int i = 0; i < 4; i++)
		where[i] = (void *)(uintptr_t)at[i];
	fk_args a = arguments(where[0], where[1], where[2], where[3], FK_CUDA);
	a.stream = stream;
	fk_problem p = fk_problem_init();
	p.band = FK_BAND_CAUSAL;
	int code = fk_problem_of(&a, &p, &err);
	if (code == FK_OK)
		code = fk_forward(gpu, &p, &a, &err); /* enqueues the work in the stream and returns */
	if (code != FK_OK)
		return fprintf(stderr, "%s: %s\n", fk_error_string(code), err.message), 1;
	cu.download(o, at[3], BYTES, stream);
	if (cu.stream_wait(stream) != 0)
		return puts("the GPU failed"), 1;

	/* The same problem on the CPU, for comparison. */
	a = arguments(q, k, v, want, FK_HOST);
	if (fk_open("simd", 0, &cpu, &err) != FK_OK || fk_forward(cpu, &p, &a, &err) != FK_OK)
		return fprintf(stderr, "%s\n", err.message), 1;
	double worst = 0;
	for (int i = 0; i < SIZE; i++)
		worst = fmax(worst, fabs((double)o[i] - want[i]));
	printf("the largest difference of GPU and CPU: %g\n", worst);
	for (int i = 0; i < 4; i++)
		cu.release(at[i]);
	cu.stream_free(stream);
	fk_close(cpu, NULL);
	fk_close(gpu, NULL);
	return worst > 1e-4;
}
