/* Shape and seed of the tiny model. */
#include "tests/tools/tiny.h"

#include "tests/tools/gguf_write.h"

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
	struct nsv_gguf_writer w;
	size_t file_len;

	nsv_gguf_writer_init(&w, 1);
	nsv_gguf_put_tiny_llama(&w, &shape);
	uint8_t *file = nsv_gguf_finish(&w, &file_len);
	snprintf(path, len, "/tmp/nanoserve-tiny-XXXXXX");
	int fd = mkstemp(path);
	if (fd < 0 || write(fd, file, file_len) != (ssize_t)file_len)
		abort();
	close(fd);
	free(file);
	nsv_gguf_writer_deinit(&w);
}
