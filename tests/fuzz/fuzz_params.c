/* Parameters and chat messages as a client's arena may hold them; the first byte chooses. */
#include "daemon/params.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check_ids(const struct nsv_id_list *list)
{
	for (uint32_t i = 0; i < list->n; i++)
		if (list->id[i] < 0 || list->id[i] >= 1000 ||
			(i > 0 && list->id[i] <= list->id[i - 1]))
			abort();
}

/* What the parser promises of what it takes. */
static void check(const struct nsv_wish *w, size_t len)
{
	if ((len > 0 && w->params.len != len) || w->lists.n_bias > NSV_MAX_LIST)
		abort();
	check_ids(&w->lists.stop);
	check_ids(&w->lists.allow);
	check_ids(&w->lists.ban);
	for (uint32_t i = 0; i < w->lists.n_bias; i++)
		if (w->lists.bias[i].id < 0 || w->lists.bias[i].id >= 1000 ||
			w->lists.bias[i].bias - w->lists.bias[i].bias != 0)
			abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct nsv_chat_msg *msgs;
	static struct nsv_wish wish;
	struct nsv_err err;
	size_t n;

	if (len == 0)
		return 0;
	if (data[0] & 1) {
		if (nsv_wish_parse(data + 1, len - 1, 1000, &wish, &err) == 0)
			check(&wish, len - 1);
	} else if (nsv_messages_parse(data + 1, len - 1, &msgs, &n, &err) == 0) {
		volatile char sum = 0;
		for (size_t i = 0; i < n; i++)
			for (size_t k = 0; k < msgs[i].len; k++)
				sum = (char)(sum + msgs[i].text[k]);
		free(msgs);
	}
	return 0;
}
