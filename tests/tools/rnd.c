/* See rnd.h. splitmix64 (Steele, Lea, Flood, OOPSLA 2014). */
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
	uint64_t z = state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

uint32_t t_below(uint32_t n)
{
	return (uint32_t)((t_rand() >> 32) * n >> 32);
}

float t_float(float least, float most)
{
	return least + (most - least) * (float)(t_rand() >> 40) / (float)(1 << 24);
}
