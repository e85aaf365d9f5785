/* Parameters and chat messages as a client's arena may hold them; the first byte chooses. */
#include "daemon/params.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct nsv_chat_msg *msgs;
	struct nsv_params params;
	struct nsv_stop stop;
	struct nsv_err err;
	size_t n;

	if (len == 0)
		return 0;
	if (data[0] & 1) {
		if (nsv_params_parse(data + 1, len - 1, &params, &stop, &err) == 0 && len > 1 &&
			params.len != len - 1)
			abort();
	} else if (nsv_messages_parse(data + 1, len - 1, &msgs, &n, &err) == 0) {
		volatile char sum = 0;
		for (size_t i = 0; i < n; i++)
			for (size_t k = 0; k < msgs[i].len; k++)
				sum = (char)(sum + msgs[i].text[k]);
		free(msgs);
	}
	return 0;
}
