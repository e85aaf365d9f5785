/* The table of element types: which we compute with, and the names of all that a file may hold. */
#include "kernels/ops.h"

static const struct nsv_dtype_info infos[] = {
	{NSV_F32, "F32", 1, 4},
	{NSV_F16, "F16", 1, 2},
	{NSV_BF16, "BF16", 1, 2},
	{NSV_Q4_0, "Q4_0", 32, 18},
	{NSV_Q4_1, "Q4_1", 32, 20},
	{NSV_Q5_0, "Q5_0", 32, 22},
	{NSV_Q5_1, "Q5_1", 32, 24},
	{NSV_Q8_0, "Q8_0", 32, 34},
	{NSV_Q2_K, "Q2_K", 256, 84},
	{NSV_Q3_K, "Q3_K", 256, 110},
	{NSV_Q4_K, "Q4_K", 256, 144},
	{NSV_Q5_K, "Q5_K", 256, 176},
	{NSV_Q6_K, "Q6_K", 256, 210},
	{NSV_IQ4_NL, "IQ4_NL", 32, 18},
	{NSV_IQ4_XS, "IQ4_XS", 256, 136},
};

/* By GGUF number; NULL: a number that was removed from the format. */
static const char *const names[] = {
	"F32", "F16", "Q4_0", "Q4_1", NULL, NULL, "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K",
	"Q4_K", "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S",
	"IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16", NULL, NULL, NULL,
	"TQ1_0", "TQ2_0", NULL, NULL, NULL, "MXFP4",
};

const struct nsv_dtype_info *nsv_dtype_info(uint32_t dtype)
{
	for (size_t i = 0; i < NSV_ARRAY_LEN(infos); i++)
		if (infos[i].dtype == dtype)
			return &infos[i];
	return NULL;
}

const char *nsv_dtype_name(uint32_t dtype)
{
	if (dtype < NSV_ARRAY_LEN(names) && names[dtype])
		return names[dtype];
	return "unknown";
}

int nsv_dtype_row_len(uint32_t dtype, size_t n, size_t *ret_len)
{
	const struct nsv_dtype_info *info = nsv_dtype_info(dtype);
	if (!info || n % info->n_elem)
		return -EINVAL;
	return nsv_mul(n / info->n_elem, info->n_byte, ret_len) ? 0 : -EOVERFLOW;
}
