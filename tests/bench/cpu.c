/* The cpu backend: its kernels against the machine's limits, then whole models as a client sees
 * them, by a fresh daemon and the client library. Beside it, where LLAMA_CPP names a build of
 * llama.cpp, its programs on the same files and threads in the same run. NANOSERVE_BENCH_THREADS:
 * threads of both [2]; NANOSERVE_BENCH_PART=kernels, =models or =polling: that part alone.
 *
 *     make bench NAME=cpu        build/bench/cpu.json, build/bench/cpu.svg */
#include <string.h>

#include "tests/bench/cpu.h"
#include "tests/tools/daemon.h"

_Noreturn void die(const char *what)
{
	fprintf(stderr, "cpu: %s\n", what);
	exit(1);
}

static bool wants(const char *part)
{
	const char *only = getenv("NANOSERVE_BENCH_PART");

	return !only || strcmp(only, part) == 0;
}

int main(void)
{
	const char *threads = getenv("NANOSERVE_BENCH_THREADS");
	struct nsv_report r;

	threads = threads ? threads : "2";
	if (atoi(threads) < 1)
		die("NANOSERVE_BENCH_THREADS is no count of threads");
	setlinebuf(stdout); /* it takes minutes: what is known is to be seen */
	nsv_report_begin(&r, "cpu");
	if (wants("kernels"))
		report_kernels(&r, (uint32_t)atoi(threads));
	if (wants("models"))
		report_models(&r, threads);
	if (wants("polling"))
		report_polling(&r, threads);
	nsv_report_end(&r);
	return 0;
}
