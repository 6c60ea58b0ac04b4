/*
 * Runs the golden vectors (conformance/testdata/README.md) through the C ABI, on every
 * available kernel and on the kernels that "auto" chooses: the grid cases, and every trap in
 * every element type for which its file has error bounds.
 *
 *     conformance FILE.safetensors...
 *
 * Each tensor is between guard elements that must not change. Outputs are NaN before a run. A
 * second run must give the same bits.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "vector.h"

enum { GUARD = 32, UNTOUCHED = 0xa5, POISON = 0xff };

typedef enum { DENSE, BSHD, GAPS, EXPANDED, ODD, PACKED } layout;

/* The sequence arrays of queries or of keys. */
typedef struct side {
	int64_t batch, rows; /* dimensions of the tensors */
	int32_t *lens;       /* lengths; NULL: full length */
	int32_t *starts;     /* if packed */
	int32_t *pages;      /* if paged */
	int64_t width, page;
} side;

typedef struct placed {
	const char *name;
	fk_tensor t;
	unsigned char *memory;
	char *used; /* for each element of the memory: whether the tensor contains it */
	size_t n;   /* number of elements, guards included */
	array dense;
	const side *side; /* NULL for a tensor with rows of neither queries nor keys */
	int output;
} placed;

typedef struct call {
	fk_problem p;
	fk_args args;
	side q, kv;
	placed list[16];
	int count;
} call;

static int failures, passed, refused;

static int64_t place_of(const placed *x, int64_t b, int64_t h, int64_t r)
{
	const side *s = x->side;
	if (s != NULL) {
		if (s->lens != NULL && (s->starts != NULL || s->pages != NULL) && r >= s->lens[b])
			return -1;
		if (s->starts != NULL)
			r += s->starts[b], b = 0;
		else if (s->pages != NULL) {
			int64_t page = s->pages[b * s->width + r / s->page];
			r %= s->page, b = page;
		}
	}
	int64_t at = GUARD, i[3] = {b, h, r};
	for (int d = 0; d < 3; d++)
		if (x->t.shape[d] != 1)
			at += i[d] * x->t.strides[d];
	return at;
}

/* walk calls f for each element of x->dense, with its index in dense and its index in memory, or -1 if it is not there. */
static void walk(placed *x, void (*f)(placed *, size_t, int64_t))
{
	size_t i = 0;
	const int64_t *s = x->dense.shape;
	for (int64_t b = 0; b < s[0]; b++)
		for (int64_t h = 0; h < s[1]; h++)
			for (int64_t r = 0; r < s[2]; r++) {
				int64_t at = place_of(x, b, h, r);
				for (int64_t c = 0; c < s[3]; c++, i++)
					f(x, i, at < 0 ? -1 : at + c);
			}
}

static void mark(placed *x, size_t i, int64_t at)
{
	(void)i;
	if (at >= 0)
		x->used[at] = 1;
}

static void fill(placed *x, size_t i, int64_t at)
{
	if (at >= 0)
		store(x->memory, x->t.dtype, (size_t)at, x->dense.values[i]);
}

static void poison(placed *x)
{
	size_t size = size_of(x->t.dtype);
	for (size_t at = 0; at < x->n; at++)
		memset(x->memory + at * size, x->used[at] ? POISON : UNTOUCHED, size);
	if (x->dense.values != NULL)
		walk(x, fill);
}

static void stride(placed *x, layout l, int kv)
{
	int64_t *s = x->t.strides, heads = x->t.shape[1], rows = x->t.shape[2], row = x->t.shape[3];
	s[3] = 1, s[2] = row, s[1] = rows * row, s[0] = heads * rows * row;
	if (l == BSHD)
		s[1] = row, s[2] = heads * row;
	if (l == GAPS)
		s[2] = row + 3, s[1] = rows * s[2] + 5, s[0] = heads * s[1];
	if (l == EXPANDED && kv)
		s[0] = s[1] = 0;
	int64_t last = 0;
	int empty = 0;
	for (int d = 0; d < 4; d++) {
		empty |= x->t.shape[d] == 0;
		last += (x->t.shape[d] - 1) * s[d];
		if (l == ODD && d < 3 && x->t.shape[d] == 1)
			s[d] = -7777777;
	}
	x->n = 2 * GUARD + (empty ? 0 : (size_t)last + 1);
}

/* place adds a tensor with the contents of an array to the call. The array of an output may have no values. */
static void place(call *c, const char *name, fk_tensor *to, array a, int32_t dtype, const side *s, layout l, int output)
{
	placed *x = &c->list[c->count++];
	*x = (placed){.name = name, .dense = a, .side = s, .output = output};
	memcpy(x->t.shape, a.shape, sizeof a.shape);
	if (s != NULL)
		x->t.shape[0] = s->batch, x->t.shape[2] = s->rows;
	x->t.dtype = dtype;
	stride(x, l, s == &c->kv && !output);
	x->memory = allocate(x->n * size_of(dtype));
	x->used = allocate(x->n);
	memset(x->used, 0, x->n);
	walk(x, mark);
	poison(x);
	x->t.data = x->memory + GUARD * size_of(dtype);
	*to = x->t;
}

static int32_t *lengths(const vector *v, const char *name, int64_t batch)
{
	array a = stored(v, name);
	if (a.values == NULL)
		return NULL;
	int32_t *lens = allocate((size_t)batch * sizeof *lens);
	for (int64_t b = 0; b < batch; b++)
		lens[b] = (int32_t)a.values[b];
	free(a.values);
	return lens;
}

static void pack(side *s, int64_t batch, int64_t most)
{
	s->starts = allocate((size_t)(batch + 1) * sizeof *s->starts);
	s->starts[0] = 2;
	for (int64_t b = 0; b < batch; b++)
		s->starts[b + 1] = s->starts[b] + (s->lens ? s->lens[b] : (int32_t)most);
	s->batch = 1;
	s->rows = s->starts[batch] + 3;
}

/* paginate assigns pages from the end of the pool. The first and last page of the pool stay unused. */
static void paginate(side *s, int64_t batch, int64_t most, int64_t page)
{
	s->page = page;
	s->width = (most + page - 1) / page;
	s->batch = batch * s->width + 2;
	s->rows = page;
	s->pages = allocate((size_t)(batch * s->width) * sizeof *s->pages);
	for (int64_t i = 0; i < batch * s->width; i++)
		s->pages[i] = (int32_t)(s->batch - 2 - i);
	if (s->lens == NULL) {
		s->lens = allocate((size_t)batch * sizeof *s->lens);
		for (int64_t b = 0; b < batch; b++)
			s->lens[b] = (int32_t)most;
	}
}

static void sides(call *c, const vector *v, layout l)
{
	fk_problem *p = &c->p;
	c->q = (side){.batch = p->batch, .rows = p->q_len};
	c->kv = (side){.batch = p->batch, .rows = p->kv_len};
	if (!(p->features & FK_RAGGED))
		return;
	c->q.lens = lengths(v, "q_lens", p->batch);
	c->kv.lens = lengths(v, "kv_lens", p->batch);
	if (l == PACKED)
		pack(&c->q, p->batch, p->q_len);
	if (p->page)
		paginate(&c->kv, p->batch, p->kv_len, p->page);
	else if (l == PACKED)
		pack(&c->kv, p->batch, p->kv_len);
	c->args.seqs = p->batch;
	c->args.q_starts = c->q.starts;
	c->args.kv_starts = c->kv.starts;
	c->args.q_lens = c->q.starts ? NULL : c->q.lens;
	c->args.kv_lens = c->kv.starts ? NULL : c->kv.lens;
	c->args.pages = c->kv.pages;
	c->args.pages_per_seq = c->kv.width;
}

static array input(const vector *v, const fk_problem *p, const char *name, int64_t heads, int64_t rows, int64_t row, int grid)
{
	array a = stored(v, name);
	int64_t shape[4] = {p->batch, heads, rows, row}, patterns[4] = {1, 8, rows, row};
	if (a.values == NULL)
		a = noise(v, name, grid ? patterns : shape);
	return grid ? spread(a, p->batch, heads) : a;
}

static array output(const vector *v, const fk_problem *p, const char *name, int grid)
{
	array a = stored(v, name);
	if (strcmp(name, "lse") == 0 || strcmp(name, "dlse") == 0 || strcmp(name, "rowmax") == 0)
		a.shape[3] = 1;
	return grid && a.values ? spread(a, p->batch, p->heads) : a;
}

/* has_wide_bias reports whether the bias of a trap is float32 in problems of every type. */
static int has_wide_bias(const char *name)
{
	static const char *const wide[] = {"bias_type", "bias_min_f32", "bias_1e30", "bias_min_part", "bias_largest"};
	for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
		if (strcmp(name, wide[i]) == 0)
			return 1;
	return 0;
}

static void place_features(call *c, const vector *v, int pass)
{
	fk_args *a = &c->args;
	int32_t bias = has_wide_bias(v->name) ? FK_F32 : c->p.dtype;
	struct { const char *name; fk_tensor *to; int32_t dtype; int output; uint32_t feature; } list[] = {
		{"bias", &a->bias, bias, 0, FK_BIAS}, {"mask", &a->mask, FK_BOOL, 0, FK_MASK}, {"slopes", &a->slopes, FK_F32, 0, FK_ALIBI},
		{"sink", &a->sink, FK_F32, 0, FK_SINK}, {"bias", &a->d_bias, bias, 1, FK_BIAS}, {"sink", &a->d_sink, FK_F32, 1, FK_SINK},
	};
	if (c->p.ranges)
		place(c, "ranges", &a->ranges, stored(v, "ranges"), FK_I32, NULL, DENSE, 0);
	for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
		if (!(c->p.features & list[i].feature) || (list[i].output && pass == FK_PASS_FORWARD))
			continue;
		array x = stored(v, list[i].name);
		if (list[i].output) {
			free(x.values);
			x.values = NULL;
		}
		place(c, list[i].output ? (list[i].feature == FK_BIAS ? "dbias" : "dsink") : list[i].name, list[i].to, x, list[i].dtype, NULL, DENSE, list[i].output);
	}
}

static array blank(array a)
{
	free(a.values);
	a.values = NULL;
	return a;
}

/* codes places int8 keys or values with their scales. The vector has the products of both. */
static void codes(call *c, const vector *v, const char *name, fk_tensor *to, array a, const char *scale_name, fk_tensor *scale_to, layout l)
{
	array scales = stored(v, scale_name);
	int64_t dim = a.shape[3], rows = a.shape[0] * a.shape[1] * a.shape[2];
	for (int64_t i = 0; i < rows * dim; i++) {
		float s = scales.values[i / dim * scales.shape[3] + i % dim / c->p.int8group];
		a.values[i] = isfinite(s) && s != 0 ? a.values[i] / s : 1;
	}
	place(c, name, to, a, FK_I8, &c->kv, l, 0);
	place(c, scale_name, scale_to, scales, FK_F32, &c->kv, l, 0);
}

static void prepare(call *c, const vector *v, int pass, layout l, int grid)
{
	fk_problem *p = &c->p;
	fk_args *a = &c->args;
	int32_t kv = p->kv_dtype ? p->kv_dtype : p->dtype;
	const char *seed = metadata(v, "seed");
	*a = fk_args_init();
	a->seed = seed ? strtoull(seed, NULL, 10) : 0;
	const char *origin = metadata(v, "origin");
	for (int64_t *to[] = {&a->origin_batch, &a->origin_head, &a->origin_row, &a->origin_key}, i = 0; origin && i < 4; i++) {
		char *end;
		*to[i] = strtoll(origin, &end, 10);
		origin = end;
	}
	c->count = 0;
	sides(c, v, l);
	place(c, "q", &a->q, input(v, p, "q", p->heads, p->q_len, p->dim, grid), p->dtype, &c->q, l, 0);
	array k = input(v, p, "k", p->kv_heads, p->kv_len, p->dim, grid), values = input(v, p, "v", p->kv_heads, p->kv_len, p->v_dim, grid);
	if (p->int8group) {
		codes(c, v, "k", &a->k, k, "kscale", &a->kscale, l);
		codes(c, v, "v", &a->v, values, "vscale", &a->vscale, l);
	} else {
		place(c, "k", &a->k, k, kv, &c->kv, l, 0);
		place(c, "v", &a->v, values, kv, &c->kv, l, 0);
	}
	array o = output(v, p, "o", grid), lse = output(v, p, "lse", grid);
	if (pass == FK_PASS_FORWARD) {
		array before = stored(v, "earlier"), before_lse = stored(v, "earlier_lse");
		place(c, "o", &a->o, before.values ? before : (array){.shape = {o.shape[0], o.shape[1], o.shape[2], o.shape[3]}}, p->dtype, &c->q, l, 1);
		place(c, "lse", &a->lse, before_lse.values ? before_lse : (array){.shape = {lse.shape[0], lse.shape[1], lse.shape[2], 1}}, FK_F32, &c->q, l, 1);
		blank(o), blank(lse);
		if (p->features & FK_ROWMAX) {
			array before_max = stored(v, "earlier_rowmax");
			place(c, "rowmax", &a->rowmax, before_max.values ? before_max : blank(output(v, p, "rowmax", 0)), FK_F32, &c->q, l, 1);
		}
		if (p->features & FK_KEYMASS)
			place(c, "keymass", &a->keymass, blank(output(v, p, "keymass", 0)), FK_F32, NULL, DENSE, 1);
	} else {
		place(c, "o", &a->o, o, p->dtype, &c->q, l, 0);
		place(c, "lse", &a->lse, lse, FK_F32, &c->q, l, 0);
		place(c, "do", &a->d_o, input(v, p, "do", p->heads, p->q_len, p->v_dim, grid), p->dtype, &c->q, l, 0);
		array dlse = output(v, p, "dlse", 0);
		if (dlse.values)
			place(c, "dlse", &a->d_lse, dlse, FK_F32, &c->q, l, 0);
		place(c, "dq", &a->d_q, blank(output(v, p, "dq", grid)), p->dtype, &c->q, l, 1);
		place(c, "dk", &a->d_k, blank(output(v, p, "dk", grid)), kv, &c->kv, l == EXPANDED ? DENSE : l, 1);
		place(c, "dv", &a->d_v, blank(output(v, p, "dv", grid)), kv, &c->kv, l == EXPANDED ? DENSE : l, 1);
	}
	place_features(c, v, pass);
}

static void release(call *c)
{
	for (int i = 0; i < c->count; i++) {
		free(c->list[i].memory);
		free(c->list[i].used);
		free(c->list[i].dense.values);
	}
	free(c->q.lens), free(c->q.starts), free(c->kv.lens), free(c->kv.starts), free(c->kv.pages);
}

/* compare returns a text about the error of an output, or "". An expected NaN matches only
   NaN. A large LSE has its own bound. */
static const char *compare(const vector *v, placed *x, const fk_problem *p, const char *type, int grid)
{
	static char text[256];
	static const unsigned char untouched[] = {UNTOUCHED, UNTOUCHED, UNTOUCHED, UNTOUCHED};
	char key[40];
	snprintf(key, sizeof key, "bound_%s_%s", x->name, type);
	double bound = atof(metadata(v, key));
	array want = output(v, p, x->name, grid);
	size_t i = 0, size = size_of(x->t.dtype);
	text[0] = 0;
	for (size_t at = 0; at < x->n; at++)
		if (!x->used[at] && memcmp(x->memory + at * size, untouched, size) != 0)
			snprintf(text, sizeof text, "%s: memory outside the tensor was written, at %zu of %zu", x->name, at, x->n);
	for (int64_t b = 0; b < x->dense.shape[0]; b++)
		for (int64_t h = 0; h < x->dense.shape[1]; h++)
			for (int64_t r = 0; r < x->dense.shape[2]; r++) {
				int64_t at = place_of(x, b, h, r);
				for (int64_t e = 0; e < x->dense.shape[3]; e++, i++) {
					double got = at < 0 ? want.values[i] : load(x->memory, x->t.dtype, (size_t)(at + e));
					double most = strcmp(x->name, "lse") == 0 && fabs(want.values[i]) >= 1 << 20 ? ldexp(fabs(want.values[i]), -22) : bound;
					int both_nan = isnan(got) && isnan(want.values[i]);
					if (got != want.values[i] && !both_nan && !(fabs(got - want.values[i]) <= most))
						snprintf(text, sizeof text, "%s[%d,%d,%d,%d] = %g, want %g, bound %g", x->name, (int)b, (int)h, (int)r, (int)e, got, want.values[i], most);
				}
			}
	free(want.values);
	return text;
}

static void report(const char *kernel, const vector *v, const char *type, int pass, const char *text)
{
	failures++;
	printf("FAIL %s %s-%s %s: %s\n", kernel, v->name, type, pass ? "backward" : "forward", text);
}

/* run runs one pass of a case twice on one kernel. */
static void run(fk_dispatcher *d, const char *kernel, const vector *v, fk_problem p, const char *type, int pass, layout l, int grid)
{
	call c = {.p = p};
	fk_error e = fk_error_init();
	prepare(&c, v, pass, l, grid);
	int (*compute)(fk_dispatcher *, const fk_problem *, const fk_args *, fk_error *) = pass ? fk_backward : fk_forward;
	unsigned char *first[16] = {0};
	for (int again = 0; again < 2; again++) {
		int code = compute(d, &c.p, &c.args, &e);
		if (code == FK_ERR_UNSUPPORTED && strcmp(kernel, "auto") != 0) {
			refused++;
			break;
		}
		if (code != FK_OK) {
			report(kernel, v, type, pass, e.message);
			break;
		}
		int bad = failures;
		for (int i = 0; i < c.count; i++) {
			placed *x = &c.list[i];
			size_t bytes = x->n * size_of(x->t.dtype);
			const char *text = x->output ? compare(v, x, &c.p, type, grid) : "";
			if (*text)
				report(kernel, v, type, pass, text);
			if (again && memcmp(first[i], x->memory, bytes) != 0)
				report(kernel, v, type, pass, x->output ? "another run gave other bits" : "an input was changed");
			if (!again) {
				first[i] = allocate(bytes);
				memcpy(first[i], x->memory, bytes);
				poison(x);
			}
		}
		if (failures > bad)
			break;
		passed += again;
	}
	for (int i = 0; i < c.count; i++)
		free(first[i]);
	release(&c);
}

static layout layout_of(const char *name)
{
	static const struct { const char *name; layout l; } list[] = {
		{"bshd", BSHD}, {"row_gaps", GAPS}, {"stride_zero", EXPANDED}, {"size_one_strides", ODD},
	};
	for (size_t i = 0; i < sizeof list / sizeof *list; i++)
		if (strcmp(name, list[i].name) == 0)
			return list[i].l;
	return strncmp(name, "packed_", 7) == 0 || strstr(name, "_packed_") ? PACKED : DENSE;
}

static void run_file(fk_dispatcher *d, const char *kernel, const vector *v)
{
	static const char *const types[] = {"f32", "f16", "bf16"};
	const char *name = metadata(v, "problem");
	if (name == NULL)
		die("%s: has no problem", v->name);
	fk_problem p = parse_problem(name);
	int backward = strstr(v->header, "\"dq\":{") != NULL, pattern = strncmp(v->name, "b1-h8-g8-", 9) == 0;
	for (int32_t t = 0; t < 3; t++) {
		char key[24];
		snprintf(key, sizeof key, "bound_o_%s", types[t]);
		if (metadata(v, key) == NULL)
			continue;
		p.dtype = t;
		for (int pass = 0; pass <= backward; pass++) {
			run(d, kernel, v, p, types[t], pass, layout_of(v->name), 0);
			for (int64_t batch = 4; pattern && batch <= 8; batch += 4) { /* corners and largest size of the grid */
				fk_problem grid = p;
				grid.batch = batch;
				grid.heads = grid.kv_heads = batch == 4 ? 5 : 8;
				run(d, kernel, v, grid, types[t], pass, DENSE, 1);
			}
		}
	}
}

static void run_kernel(const char *kernel, vector *files, int count)
{
	fk_dispatcher *d;
	fk_error e = fk_error_init();
	if (fk_open(kernel, FK_OPEN_BLANK, &d, &e) != FK_OK)
		die("%s: %s", kernel, e.message);
	passed = refused = 0;
	for (int i = 0; i < count; i++)
		run_file(d, kernel, &files[i]);
	if (fk_close(d, &e) != FK_OK)
		die("%s: %s", kernel, e.message);
	printf("%-22s %4d passed, %4d not taken\n", kernel, passed, refused);
	if (passed == 0)
		failures++, printf("FAIL %s: took nothing\n", kernel);
}

int main(int argc, char **argv)
{
	static char list[1 << 16];
	fk_dispatcher *d;
	fk_error e = fk_error_init();
	size_t needed;
	vector *files = allocate((size_t)argc * sizeof *files);
	if (argc < 2)
		die("usage: conformance FILE.safetensors...");
	for (int i = 1; i < argc; i++)
		files[i - 1] = read_vector(argv[i]);
	if (fk_open("auto", 0, &d, &e) != FK_OK || fk_kernels(d, list, sizeof list, &needed, &e) != FK_OK || fk_close(d, &e) != FK_OK)
		die("%s", e.message);
	run_kernel("auto", files, argc - 1);
	for (char *line = strtok(list, "\n"); line; line = strtok(NULL, "\n")) {
		char kernel[64], pass[16], tab;
		if (sscanf(line, "%63[^\t]\t%15[^\t]%c%*1[\t]", kernel, pass, &tab) != 3 || strcmp(pass, "forward") != 0)
			continue; /* the name of the forward kernel selects the backward kernel, too */
		if (strstr(line, "forward\t\t"))
			run_kernel(kernel, files, argc - 1); /* the third field is empty: the machine lacks nothing */
	}
	for (int i = 1; i < argc; i++)
		free_vector(&files[i - 1]);
	free(files);
	return failures ? 1 : 0;
}
