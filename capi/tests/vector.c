#include "vector.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void die(const char *format, ...)
{
	va_list list;
	va_start(list, format);
	vfprintf(stderr, format, list);
	va_end(list);
	fputc('\n', stderr);
	exit(2);
}

void *allocate(size_t bytes)
{
	void *p = malloc(bytes ? bytes : 1);
	if (p == NULL)
		die("out of memory");
	return p;
}

vector read_vector(const char *path)
{
	vector v = {0};
	FILE *f = fopen(path, "rb");
	unsigned char head[8];
	if (f == NULL || fread(head, 1, 8, f) != 8)
		die("%s: cannot be read", path);
	uint64_t n = 0;
	for (int i = 7; i >= 0; i--)
		n = n << 8 | head[i];
	if (n > 1 << 20)
		die("%s: not a safetensors file", path);
	v.header = allocate(n + 1);
	if (fread(v.header, 1, n, f) != n)
		die("%s: the header is cut", path);
	v.header[n] = 0;
	size_t used = 0, room = 1 << 16, got;
	v.data = allocate(room);
	while ((got = fread(v.data + used, 1, room - used, f)) > 0)
		if ((used += got) == room && (v.data = realloc(v.data, room *= 2)) == NULL)
			die("out of memory");
	fclose(f);
	const char *base = strrchr(path, '/');
	snprintf(v.name, sizeof v.name, "%s", base ? base + 1 : path);
	char *suffix = strstr(v.name, ".safetensors");
	if (suffix)
		*suffix = 0;
	return v;
}

void free_vector(vector *v)
{
	free(v->header);
	free(v->data);
}

/* find searches the header for the quoted key, a colon and the character next. It returns the text after them, or NULL. */
static const char *find(const vector *v, const char *key, char next)
{
	char quoted[80];
	snprintf(quoted, sizeof quoted, "\"%s\":%c", key, next);
	const char *at = strstr(v->header, quoted);
	return at ? at + strlen(quoted) : NULL;
}

const char *metadata(const vector *v, const char *key)
{
	static char value[256];
	const char *at = find(v, key, '"');
	size_t n = at ? strcspn(at, "\"") : 0;
	if (at == NULL || n >= sizeof value)
		return NULL;
	memcpy(value, at, n);
	value[n] = 0;
	return value;
}

static size_t elements(const int64_t shape[4])
{
	return (size_t)(shape[0] * shape[1] * shape[2] * shape[3]);
}

array stored(const vector *v, const char *name)
{
	array x = {NULL, {1, 1, 1, 1}};
	const char *at = find(v, name, '{');
	if (at == NULL)
		return x;
	at = strstr(at, "\"shape\":[") + strlen("\"shape\":[");
	for (int d = 0; d < 4 && *at != ']'; d++) {
		char *end;
		x.shape[d] = strtoll(at, &end, 10);
		at = end + (*end == ',');
	}
	at = strstr(at, "\"data_offsets\":[") + strlen("\"data_offsets\":[");
	size_t n = elements(x.shape);
	x.values = allocate(n * sizeof(float));
	memcpy(x.values, v->data + strtoull(at, NULL, 10), n * sizeof(float));
	return x;
}

array noise(const vector *v, const char *name, const int64_t shape[4])
{
	char label[160];
	snprintf(label, sizeof label, "%s/%s", v->name, name);
	uint32_t seed = 2166136261u;
	for (const char *c = label; *c; c++)
		seed = (seed ^ (unsigned char)*c) * 16777619u;
	array x;
	memcpy(x.shape, shape, sizeof x.shape);
	size_t n = elements(shape);
	x.values = allocate(n * sizeof(float));
	for (size_t i = 0; i < n; i++) {
		uint32_t h = seed + (uint32_t)i * 0x9E3779B9u;
		h ^= h >> 16;
		h *= 0x85EBCA6Bu;
		h ^= h >> 13;
		h *= 0xC2B2AE35u;
		h ^= h >> 16;
		x.values[i] = ((float)(h >> 26) - 32) / 16;
	}
	return x;
}

array spread(array p, int64_t batch, int64_t heads)
{
	int64_t rows = p.shape[2], dim = p.shape[3];
	array x = {NULL, {batch, heads, rows, dim}};
	x.values = allocate(elements(x.shape) * sizeof(float));
	float *to = x.values;
	for (int64_t b = 0; b < batch; b++)
		for (int64_t h = 0; h < heads; h++)
			for (int64_t i = 0; i < rows; i++)
				for (int64_t c = 0; c < dim; c++)
					*to++ = p.values[((3 * b + h) % 8 * rows + i) * dim + (c + b) % dim];
	free(p.values);
	return x;
}

/* number parses a key followed by a number at *at, and advances *at past both. */
static int number(const char **at, const char *key, double *x)
{
	size_t n = strlen(key);
	char *end;
	if (strncmp(*at, key, n) != 0)
		return 0;
	*x = strncmp(*at + n, "inf", 3) == 0 ? (end = (char *)(uintptr_t)*at + n + 3, FK_UNLIMITED) : strtod(*at + n, &end);
	if (end == *at + n)
		return 0;
	*at = end;
	return 1;
}

static int word(const char **at, const char *key)
{
	size_t n = strlen(key);
	if (strncmp(*at, key, n) != 0 || ((*at)[n] != 0 && (*at)[n] != '-'))
		return 0;
	*at += n;
	return 1;
}

fk_problem parse_problem(const char *name)
{
	fk_problem p = fk_problem_init();
	double x;
	const char *at = name;
	struct { const char *key; int64_t *to; } sizes[] = {
		{"b", &p.batch}, {"-h", &p.heads}, {"-g", &p.kv_heads}, {"-n", &p.q_len}, {"-m", &p.kv_len}, {"-d", &p.dim},
	};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		if (!number(&at, sizes[i].key, &x))
			die("%s: is no problem", name);
		*sizes[i].to = (int64_t)x;
	}
	p.v_dim = number(&at, "-dv", &x) ? (int64_t)x : p.dim;
	if (!word(&at, "-f32"))
		die("%s: is not f32", name);
	p.kv_dtype = word(&at, "-kvf16") ? FK_F16 : word(&at, "-kvbf16") ? FK_BF16 : 0;
	struct { const char *key; uint32_t bit; } flags[] = {
		{"-alibi", FK_ALIBI}, {"-bias", FK_BIAS}, {"-mask", FK_MASK}, {"-sink", FK_SINK}, {"-ragged", FK_RAGGED}, {"-carry", FK_CARRY}, {"-origin", FK_ORIGIN}, {"-rowmax", FK_ROWMAX}, {"-keymass", FK_KEYMASS},
	};
	while (*at) {
		const char *before = at;
		if (word(&at, "-causal"))
			p.band = FK_BAND_CAUSAL;
		else if (number(&at, "-window", &x)) {
			/* "-window2.5" has two numbers, 2 and 5. */
			at = before + strlen("-window");
			p.band = FK_BAND_WINDOW;
			p.left = strncmp(at, "inf", 3) == 0 ? FK_UNLIMITED : strtoll(at, NULL, 10);
			at = strchr(at, '.') + 1;
			p.right = strncmp(at, "inf", 3) == 0 ? FK_UNLIMITED : strtoll(at, NULL, 10);
			at += strcspn(at, "-");
		} else if (word(&at, "-topleft"))
			p.top_left = 1;
		else if (number(&at, "-shift", &x))
			p.shift = (int64_t)x;
		else if (number(&at, "-scale", &x))
			p.scale = (float)x;
		else if (number(&at, "-softcap", &x))
			p.softcap = (float)x;
		else if (number(&at, "-dropout", &x))
			p.dropout = (float)x;
		else if (number(&at, "-page", &x))
			p.page = (int64_t)x;
		else if (number(&at, "-int8group", &x))
			p.int8group = (int64_t)x;
		else if (number(&at, "-ranges", &x))
			p.ranges = (int64_t)x;
		else
			for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
				if (word(&at, flags[i].key)) {
					p.features |= flags[i].bit;
					break;
				}
		if (at == before)
			die("%s: is not understood from %s on", name, at);
	}
	return p;
}

size_t size_of(int32_t dtype) { return dtype == FK_F32 || dtype == FK_I32 ? 4 : dtype == FK_BOOL || dtype == FK_I8 ? 1 : 2; }

static uint16_t to_bf16(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, 4);
	if (x != x)
		return (uint16_t)(bits >> 16 | 64);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* to_f16 rounds to nearest, ties to even. */
static uint16_t to_f16(float x)
{
	uint16_t sign = signbit(x) ? 0x8000 : 0;
	double a = fabs((double)x);
	if (x != x)
		return sign | 0x7e00;
	if (a >= 65520)
		return sign | 0x7c00;
	int e;
	frexp(a, &e);
	if (a == 0 || e < -13) /* subnormal */
		return sign | (uint16_t)nearbyint(ldexp(a, 24));
	return sign | (uint16_t)(((e + 13) << 10) + (int)nearbyint(ldexp(a, 11 - e))); /* a carry increments the exponent */
}

static float from_f16(uint16_t h)
{
	int e = h >> 10 & 31, m = h & 1023;
	double a = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
	return (float)(h & 0x8000 ? -a : a);
}

void store(void *at, int32_t dtype, size_t i, float x)
{
	switch (dtype) {
	case FK_F32: ((float *)at)[i] = x; break;
	case FK_I8: ((int8_t *)at)[i] = (int8_t)x; break;
	case FK_I32: ((int32_t *)at)[i] = (int32_t)x; break;
	case FK_F16: ((uint16_t *)at)[i] = to_f16(x); break;
	case FK_BF16: ((uint16_t *)at)[i] = to_bf16(x); break;
	default: ((unsigned char *)at)[i] = x != 0;
	}
}

float load(const void *at, int32_t dtype, size_t i)
{
	uint32_t bits;
	float x;
	switch (dtype) {
	case FK_F32: return ((const float *)at)[i];
	case FK_F16: return from_f16(((const uint16_t *)at)[i]);
	case FK_BF16:
		bits = (uint32_t)((const uint16_t *)at)[i] << 16;
		memcpy(&x, &bits, 4);
		return x;
	}
	return ((const unsigned char *)at)[i];
}
