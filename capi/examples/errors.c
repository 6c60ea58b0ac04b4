/*
 * Prints the code, field and message of some errors. It also prints which kernel would run, and why
 * the other kernels would not run.
 *
 *     cc errors.c $(pkg-config --cflags --libs flashkit) -o errors && ./errors
 */
#include <stdio.h>
#include <stdlib.h>

#include <flashkit.h>

static void tell(const char *what, int code, const fk_error *err)
{
	printf("%s: code %d, %s; field \"%s\"\n    %s\n", what, code, fk_error_string(code), err->field, err->message);
}

int main(void)
{
	static float q[64], k[64], v[64], o[64];
	fk_error err = fk_error_init();
	fk_dispatcher *d, *gpu;
	if (fk_open("auto", 0, &d, &err) != FK_OK)
		return tell("open", err.code, &err), 1;

	fk_args a = fk_args_init();
	a.q = fk_dense(q, FK_F32, 1, 1, 8, 8);
	a.k = fk_dense(k, FK_F32, 1, 1, 8, 8);
	a.v = fk_dense(v, FK_F32, 1, 1, 8, 8);
	a.o = fk_dense(o, FK_F32, 1, 1, 8, 4); /* wrong: V has 8 elements per row */
	fk_problem p = fk_problem_init();
	if (fk_problem_of(&a, &p, &err) != FK_OK)
		return tell("problem", err.code, &err), 1;
	int code = fk_forward(d, &p, &a, &err);
	if (code != FK_ERR_HEAD_DIM)
		return 1;
	tell("a wrong output", code, &err);

	a.o = fk_dense(q, FK_F32, 1, 1, 8, 8); /* the output overlaps an input */
	if ((code = fk_forward(d, &p, &a, &err)) != FK_ERR_OVERLAP)
		return 1;
	tell("an output on an input", code, &err);

	/* A backend that is requested by name, but that the machine lacks, is an error. */
	code = fk_open("cuda", 0, &gpu, &err);
	if (code == FK_OK)
		fk_close(gpu, NULL);
	else
		tell("a GPU", code, &err);

	size_t needed;
	if (fk_explain(d, &p, FK_PASS_FORWARD, NULL, 0, &needed, &err) != FK_OK)
		return tell("explain", err.code, &err), 1;
	char *text = malloc(needed + 1);
	if (text != NULL && fk_explain(d, &p, FK_PASS_FORWARD, text, needed + 1, NULL, &err) == FK_OK)
		fputs(text, stdout);
	free(text);

	fk_close(d, NULL);
	code = fk_forward(d, &p, &a, &err); /* a closed handle is an error */
	tell("after close", code, &err);
	return code != FK_ERR_HANDLE;
}
