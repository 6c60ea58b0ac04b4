/* Reads the golden vectors, unpacked: see conformance/testdata/README.md. */
#ifndef VECTOR_H
#define VECTOR_H

#include "flashkit.h"

/* A file of a case. */
typedef struct vector {
	char *header; /* JSON, ended by a zero byte */
	char *data;
	char name[128]; /* of the file, without its suffix */
} vector;

/* A dense array, row-major. NULL values: the file has none. */
typedef struct array {
	float *values;
	int64_t shape[4];
} array;

vector read_vector(const char *path);
void free_vector(vector *v);

/* metadata returns a string of the metadata in a buffer that the next call uses again, or NULL. */
const char *metadata(const vector *v, const char *key);

/* stored returns an array of the file, with dimensions of 1 after those of its shape. */
array stored(const vector *v, const char *name);

/* noise returns an array that inputs have by formula. */
array noise(const vector *v, const char *name, const int64_t shape[4]);

/* spread makes an array of the grid from one of patterns, and frees that. */
array spread(array patterns, int64_t batch, int64_t heads);

/* parse_problem makes a problem of its name. It ends the program where it cannot. */
fk_problem parse_problem(const char *name);

/* Conversion to storage types and back. */
void store(void *at, int32_t dtype, size_t i, float x);
float load(const void *at, int32_t dtype, size_t i);
size_t size_of(int32_t dtype);

void *allocate(size_t bytes);
_Noreturn void die(const char *format, ...);

#endif
