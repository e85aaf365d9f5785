/* A tiny llama model of random weights in a file, for tests of all but the tokens' sense. */
#ifndef NSV_TESTS_TOOLS_TINY_H
#define NSV_TESTS_TOOLS_TINY_H

#include "tests/tools/gguf_write.h"

#define NSV_TINY_CONTEXT 512

/* Writes it and names it in path (at least 64 bytes). */
void nsv_tiny_model(char *path, size_t len);
/* The same with a context of its own. */
void nsv_tiny_model_of(char *path, size_t len, uint32_t n_context);
/* ... and with a shape and numbers of its own. */
void nsv_tiny_model_shaped(
	char *path, size_t len, const struct nsv_tiny_llama *shape, uint64_t seed);

/* For a group of tests with one such model: its setup, which seeds their random numbers too, its
 * teardown, and where the model is. */
extern char nsv_tiny_path[64];
int nsv_tiny_setup(void **state);
int nsv_tiny_teardown(void **state);

#endif
