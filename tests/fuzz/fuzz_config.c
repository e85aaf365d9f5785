/* The daemon's configuration file. */
#include "daemon/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct nsv_config config = {0};
	struct nsv_err err;

	nsv_config_parse(&config, (const char *)data, len, &err);
	nsv_config_deinit(&config);
	return 0;
}
