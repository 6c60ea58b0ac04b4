// A QEMU plugin that counts executed instructions, in total and by symbol. The file itself declares
// the plugin API, version 1 (QEMU 4.2 to 8.2), so it needs no QEMU header.
//
//	cc -O2 -shared -fPIC -o count.so count.c
//	qemu-aarch64 -plugin ./count.so,only=SUBSTRING -d plugin PROGRAM
//
// The table lists symbols that contain SUBSTRING, sorted by their counts. Counts are exact for a
// single thread. If threads run the same code, the counts miss some instructions.

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t plugin_id;
struct block;
struct instruction;
extern size_t qemu_plugin_tb_n_insns(const struct block *);
extern struct instruction *qemu_plugin_tb_get_insn(const struct block *, size_t);
extern const char *qemu_plugin_insn_symbol(const struct instruction *);
extern void qemu_plugin_register_vcpu_insn_exec_inline(struct instruction *, int op, void *counter, uint64_t by);
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct block *));
extern void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
extern void qemu_plugin_outs(const char *);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

typedef struct {
	const char *symbol;
	uint64_t n;
} counter;

enum { SYMBOLS = 1 << 16, ADD_U64 = 0 };

static counter counters[SYMBOLS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *only = "";

// counter_of returns the counter of a symbol, or the last counter if the table is full.
static counter *counter_of(const char *symbol) {
	uint32_t hash = 2166136261u;
	for (const char *s = symbol; *s; s++)
		hash = (hash ^ (unsigned char)*s) * 16777619u;
	for (int i = 0; i < SYMBOLS; i++) {
		counter *c = &counters[(hash + i) % SYMBOLS];
		if (!c->symbol)
			c->symbol = strdup(symbol);
		if (c->symbol && !strcmp(c->symbol, symbol))
			return c;
	}
	return &counters[SYMBOLS - 1];
}

static void translated(plugin_id id, struct block *b) {
	(void)id;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < qemu_plugin_tb_n_insns(b); i++) {
		struct instruction *in = qemu_plugin_tb_get_insn(b, i);
		const char *symbol = qemu_plugin_insn_symbol(in);
		qemu_plugin_register_vcpu_insn_exec_inline(in, ADD_U64, &counter_of(symbol ? symbol : "?")->n, 1);
	}
	pthread_mutex_unlock(&lock);
}

static int more(const void *a, const void *b) {
	uint64_t x = ((const counter *)a)->n, y = ((const counter *)b)->n;
	return (x < y) - (x > y);
}

static void done(plugin_id id, void *unused) {
	(void)id, (void)unused;
	uint64_t all = 0, those = 0;
	for (int i = 0; i < SYMBOLS; i++) {
		all += counters[i].n;
		if (counters[i].symbol && strstr(counters[i].symbol, only))
			those += counters[i].n;
	}
	char text[400];
	snprintf(text, sizeof text, "instructions: %llu, of them %llu in *%s*\n", (unsigned long long)all, (unsigned long long)those, only);
	qemu_plugin_outs(text);
	qsort(counters, SYMBOLS, sizeof counters[0], more);
	for (int i = 0, shown = 0; i < SYMBOLS && counters[i].n && shown < 30; i++)
		if (strstr(counters[i].symbol, only)) {
			snprintf(text, sizeof text, "%14llu %s\n", (unsigned long long)counters[i].n, counters[i].symbol);
			qemu_plugin_outs(text);
			shown++;
		}
}

__attribute__((visibility("default"))) int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
	(void)info;
	for (int i = 0; i < argc; i++)
		if (!strncmp(argv[i], "only=", 5))
			only = strdup(argv[i] + 5);
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	qemu_plugin_register_atexit_cb(id, done, NULL);
	return 0;
}
