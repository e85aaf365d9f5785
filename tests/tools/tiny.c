/* Shape and seed of the tiny model. */
#include "tests/tools/tiny.h"

#include <unistd.h>

#include "tests/tools/rnd.h"

char nsv_tiny_path[64];

void nsv_tiny_model(char *path, size_t len)
{
	nsv_tiny_model_of(path, len, NSV_TINY_CONTEXT);
}

void nsv_tiny_model_of(char *path, size_t len, uint32_t n_context)
{
	const struct nsv_tiny_llama shape = {.n_layer = 2,
		.width = 64,
		.n_ffn = 96,
		.n_head = 4,
		.n_kv_head = 2,
		.head_dim = 16,
		.n_context = n_context,
		.dtype = NSV_Q8_0};

	nsv_tiny_model_shaped(path, len, &shape, 1);
}

void nsv_tiny_model_shaped(
	char *path, size_t len, const struct nsv_tiny_llama *shape, uint64_t seed)
{
	size_t file_len;
	uint8_t *file = nsv_gguf_tiny_llama(shape, seed, &file_len);

	snprintf(path, len, "/tmp/nanoserve-tiny-XXXXXX");
	int fd = mkstemp(path);
	if (fd < 0 || write(fd, file, file_len) != (ssize_t)file_len)
		abort();
	close(fd);
	free(file);
}

int nsv_tiny_setup(void **state)
{
	(void)state;
	t_seed();
	nsv_tiny_model(nsv_tiny_path, sizeof(nsv_tiny_path));
	return 0;
}

int nsv_tiny_teardown(void **state)
{
	(void)state;
	return unlink(nsv_tiny_path);
}
