/* What is refused as a model, with which words: keys and tensors that are missing, that are of
 * another size, or that the family does not have. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "daemon/model/model.h"
#include "tests/tools/family-run.h"
#include "tests/tools/rnd.h"

static void expect_refused(const struct family *family, struct family_extra extra, const char *word)
{
	const struct nsv_model_config few = {.max_row = 4, .max_out = 4};
	struct family_file f = family_file_make(family, &extra);
	struct nsv_err err = {""};
	struct nsv_team *team;
	struct nsv_model *m = NULL;

	assert_int_equal(nsv_team_new(1, &team), 0);
	int ret = nsv_model_new(f.g, family_backend("reference"), team, &few, &m, &err);
	if (ret >= 0 || !strstr(err.text, word))
		fail_msg("%s: %d \"%s\", expected an error with \"%s\"", family->arch, ret,
			err.text, word);
	assert_null(m);
	nsv_team_free(team);
	family_file_free(&f);
}

static void refuse_llama(struct family_extra extra, const char *word)
{
	expect_refused(&family_llama, extra, word);
}

static void test_refuses_tensors(void **state)
{
	struct family_file f = family_file_make(&family_llama, &(struct family_extra){0});

	(void)state;
	for (size_t i = 0; i < nsv_gguf_n_tensor(f.g); i++) {
		const struct nsv_tensor *t = nsv_gguf_tensor_at(f.g, i);
		char name[64];

		snprintf(name, sizeof(name), "%.*s", (int)t->name.len, t->name.p);
		/* Without a head of its own, the model is tied: fine. */
		if (strcmp(name, "output.weight"))
			refuse_llama((struct family_extra){.drop_tensor = name}, name);
		refuse_llama((struct family_extra){.longer = name}, name);
	}
	family_file_free(&f);
	refuse_llama((struct family_extra){.add_tensor = "rope_freqs.weight"}, "rope_freqs.weight");
	refuse_llama(
		(struct family_extra){.add_tensor = "blk.2.attn_norm.weight"}, "blk.2.attn_norm");
}

/* A missing one, and one that another family has. */
static void test_refuses_tensors_of_others(void **state)
{
	static const char *const biases[] = {
		"blk.1.attn_q.bias", "blk.1.attn_k.bias", "blk.1.attn_v.bias"};
	static const char *const norms[] = {"blk.1.attn_q_norm.weight", "blk.1.attn_k_norm.weight",
		"blk.1.post_attention_norm.weight", "blk.1.post_ffw_norm.weight"};

	(void)state;
	for (size_t i = 0; i < NSV_ARRAY_LEN(biases); i++) {
		const char *name = biases[i];

		expect_refused(&family_qwen2, (struct family_extra){.drop_tensor = name}, name);
		expect_refused(&family_gemma3, (struct family_extra){.add_tensor = name}, name);
		expect_refused(&family_llama, (struct family_extra){.add_tensor = name}, name);
	}
	for (size_t i = 0; i < NSV_ARRAY_LEN(norms); i++) {
		const char *name = norms[i];

		expect_refused(&family_gemma3, (struct family_extra){.drop_tensor = name}, name);
		expect_refused(&family_qwen2, (struct family_extra){.add_tensor = name}, name);
	}
	expect_refused(&family_qwen2, (struct family_extra){.add_tensor = "blk.0.attn_output.bias"},
		"blk.0.attn_output.bias");
}

static void test_refuses_keys(void **state)
{
	static const struct {
		const char *key;
		uint32_t value;
		const char *word;
	} bad[] = {
		{"block_count", 0, "block_count"},
		{"block_count", 513, "block_count"},
		{"block_count", 1, "blk.1"},
		{"block_count", 3, "blk.2"},
		{"embedding_length", 0, "embedding_length"},
		{"embedding_length", UINT32_MAX, "embedding_length"},
		{"embedding_length", 128, "128"},
		{"feed_forward_length", 0, "feed_forward_length"},
		{"feed_forward_length", 128, "ffn_gate"},
		{"attention.head_count", 0, "head_count"},
		{"attention.head_count", 6, "6 heads do not divide a width"},
		{"attention.head_count_kv", 3, "KV heads"},
		{"attention.head_count_kv", 8, "head_count_kv"},
		{"attention.head_count_kv", 1, "attn_k"},
		{"context_length", 0, "context_length"},
		{"context_length", 1u << 30, "context_length"},
		{"attention.key_length", 2048, "key_length"},
		{"attention.key_length", 32, "attn_q"},
		{"attention.value_length", 8, "values of 8"},
		{"rope.dimension_count", 7, "even"},
		{"rope.dimension_count", 18, "dimension_count"},
		{"vocab_size", FAMILY_N_VOCAB + 1, "vocab_size"},
		{"expert_count", 8, "expert_count"},
		{"attention.sliding_window", 32, "sliding_window"},
	};
	static const char *const needed[] = {"block_count", "embedding_length",
		"feed_forward_length", "attention.head_count", "context_length"};

	struct family mamba = family_llama;

	(void)state;
	for (size_t i = 0; i < NSV_ARRAY_LEN(bad); i++)
		refuse_llama((struct family_extra){.set_u32 = bad[i].key, .u32 = bad[i].value},
			bad[i].word);
	for (size_t i = 0; i < NSV_ARRAY_LEN(needed); i++)
		refuse_llama((struct family_extra){.drop_key = needed[i]}, needed[i]);
	mamba.arch = "mamba";
	expect_refused(&mamba, (struct family_extra){0}, "mamba");
	refuse_llama((struct family_extra){.set_str = "rope.scaling.type", .str = "yarn"}, "yarn");
}

static void test_refuses_variants(void **state)
{
	static const struct {
		const struct family *family;
		struct family_extra extra;
		const char *word;
	} rows[] = {
		{&family_qwen2, {.set_u32 = "attention.sliding_window", .u32 = 9},
			"sliding_window 9"},
		{&family_qwen2, {.set_u32 = "expert_count", .u32 = 8}, "expert_count 8"},
		{&family_gemma3, {.set_u32 = "expert_count", .u32 = 8}, "expert_count 8"},
		{&family_gemma3, {.drop_key = "attention.sliding_window"},
			"gemma3.attention.sliding_window"},
		{&family_gemma3, {.drop_key = "rope.freq_base"}, "gemma3.rope.freq_base"},
		{&family_gemma3, {.set_u32 = "attention.sliding_window_pattern", .u32 = 0},
			"pattern is 0"},
		{&family_gemma3, {.set_u32 = "attention.sliding_window_pattern", .u32 = 8},
			"pattern is 8"},
		{&family_gemma3, {.set_f32 = "attn_logit_softcapping", .f32 = 50},
			"softcapping 50"},
		{&family_gemma3, {.set_f32 = "final_logit_softcapping", .f32 = 30},
			"softcapping 30"},
		{&family_gemma3, {.set_f32 = "rope.freq_base_swa", .f32 = -1},
			"freq_base_swa is -1"},
		{&family_gemma3, {.set_f32 = "attention.scale", .f32 = 0}, "attention.scale is 0"},
		{&family_gemma3, {.set_f32 = "rope.scaling.factor", .f32 = NAN}, "factor is"},
		{&family_gemma3, {.set_bool = "attention.causal"}, "attention.causal"},
		{&family_llama, {.set_bool = "attention.causal"}, "attention.causal"},
	};

	(void)state;
	for (size_t i = 0; i < NSV_ARRAY_LEN(rows); i++)
		expect_refused(rows[i].family, rows[i].extra, rows[i].word);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refuses_tensors),
		cmocka_unit_test(test_refuses_tensors_of_others),
		cmocka_unit_test(test_refuses_keys),
		cmocka_unit_test(test_refuses_variants),
	};
	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
