/* A model file of any bytes: parsed or refused, never read past its end. */
#include <stdlib.h>

#include "daemon/load/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static volatile uint32_t sink; /* what was read must have been read */

static uint32_t sum(const void *p, size_t len)
{
	uint32_t s = 0;

	for (size_t i = 0; i < len; i++)
		s += ((const uint8_t *)p)[i];
	return s;
}

static uint32_t sum_arrays(const struct nsv_gguf *g)
{
	const struct nsv_str *strs = NULL;
	const void *p = NULL;
	size_t n = 0;
	uint32_t s = 0;

	if (nsv_gguf_arr_i32(g, "i", &p, &n) == 0 || nsv_gguf_arr_f32(g, "f", &p, &n) == 0)
		s += sum(p, 4 * n);
	if (nsv_gguf_arr_str(g, "s", &strs, &n) == 0)
		for (size_t i = 0; i < n; i++)
			s += sum(strs[i].p, strs[i].len);
	return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct nsv_gguf *g = NULL;
	struct nsv_err err = {0};

	if (nsv_gguf_parse(data, len, &g, &err) < 0) {
		if (!err.text[0])
			abort();
		return 0;
	}
	for (size_t i = 0; i < nsv_gguf_n_tensor(g); i++) {
		const struct nsv_tensor *t = nsv_gguf_tensor_at(g, i);

		sink += sum(t->data, t->len);
	}
	sink += sum_arrays(g);
	nsv_gguf_close(g);
	return 0;
}
