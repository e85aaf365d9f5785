/* Fresh random numbers for tests, and a way to have a run again. One state a program. */
#ifndef NSV_TESTS_TOOLS_RND_H
#define NSV_TESTS_TOOLS_RND_H

#include <stdint.h>

/* Seeds the generator freshly ($NANOSERVE_TEST_SEED repeats a run) and prints the seed. */
void t_seed(void);
uint64_t t_rand(void);
uint32_t t_below(uint32_t n); /* 0 .. n - 1 */
float t_float(float least, float most);

#endif
