/* Random numbers for tests: fresh ones, with a way to have a run again, from one state a program; or
 * from a state of the caller's, which is any number. */
#ifndef NSV_TESTS_TOOLS_RND_H
#define NSV_TESTS_TOOLS_RND_H

#include <stdint.h>

/* splitmix64 (Steele, Lea, Flood, OOPSLA 2014). */
static inline uint64_t t_next(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

static inline uint32_t t_next_below(uint64_t *state, uint32_t n) /* 0 .. n - 1 */
{
	return (uint32_t)((t_next(state) >> 32) * n >> 32);
}

/* Seeds the program's state freshly ($NANOSERVE_TEST_SEED repeats a run) and prints the seed. */
void t_seed(void);
uint64_t t_rand(void);
uint32_t t_below(uint32_t n); /* 0 .. n - 1 */
float t_float(float least, float most);

#endif
