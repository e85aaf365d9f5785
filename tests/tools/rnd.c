/* The program's state. */
#include "tests/tools/rnd.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t state;

void t_seed(void)
{
	const char *given = getenv("NANOSERVE_TEST_SEED");
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	state = given ? strtoull(given, NULL, 0)
		      : (uint64_t)ts.tv_sec * 1000000007u ^ (uint64_t)ts.tv_nsec;
	printf("seed %llu\n", (unsigned long long)state);
}

uint64_t t_rand(void)
{
	return t_next(&state);
}

uint32_t t_below(uint32_t n)
{
	return t_next_below(&state, n);
}

float t_float(float least, float most)
{
	return least + (most - least) * (float)(t_rand() >> 40) / (float)(1 << 24);
}
