/* Packed weights on a machine of several nodes of memory: what a member surely reads is on its own
 * node, all else on all of them. Elsewhere there is nothing to see; `make check-numa` runs this on
 * an emulated machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <sys/syscall.h>

#include "daemon/model/model-impl.h"
#include "daemon/numa.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/share.h"
#include "tests/tools/model-run.h"

#define MAX_NODE 8
#define HUGE (NSV_HUGE_PAGE / NSV_PAGE)

struct sight {
	const struct nsv_model *m;
	const struct nsv_numa *numa;
	uint32_t n_thread;
	uint64_t n_own, n_wrong;
	uint64_t n_shared[MAX_NODE];
};

/* The node of the page at `off` of the weights. */
static int node_of(const struct nsv_model *m, size_t off)
{
	void *page = (char *)m->weights.map + off / NSV_PAGE * NSV_PAGE;
	int node = -1;

	assert_int_equal(syscall(SYS_move_pages, 0, 1ul, &page, NULL, &node, 0), 0);
	assert_in_range(node, 0, MAX_NODE - 1);
	return node;
}

/* Pages that are within [begin, end) as a whole. */
static void look_at(struct sight *s, size_t begin, size_t end, int want)
{
	for (size_t at = (begin + NSV_PAGE - 1) / NSV_PAGE * NSV_PAGE; at + NSV_PAGE <= end;
		at += NSV_PAGE) {
		int node = node_of(s->m, at);
		s->n_own += want >= 0;
		s->n_wrong += want >= 0 && node != want;
		s->n_shared[node] += want < 0;
	}
}

static size_t panel_at(const struct nsv_cpu_weight *w, size_t panel)
{
	uint32_t i = w->n_mat - 1;

	while (w->mats[i].panel0 > panel)
		i--;
	return w->mats[i].off + (panel - w->mats[i].panel0) * w->mats[i].panel_len;
}

static void look_at_weight(struct sight *s, size_t off)
{
	const struct nsv_cpu_weight *w = nsv_weight_at(s->m, off);
	size_t begin, end = 0;

	for (uint32_t i = 0; i < s->n_thread; i++) {
		const struct nsv_part part = {.index = i, .count = s->n_thread};
		const struct nsv_numa_home *home =
			&s->numa->homes[nsv_numa_home_of(s->numa, i, s->n_thread)];
		nsv_cpu_share_dealt(&part, w->n_panel, w->n_panel, &begin, &end);
		look_at(s, off + panel_at(w, begin), off + panel_at(w, end), (int)home->id);
	}
	look_at(s, off + panel_at(w, end), off + panel_at(w, w->n_panel), -1);
}

static void look_at_product(struct sight *s, const struct nsv_product *p)
{
	for (uint32_t i = 0; i < p->n; i++)
		look_at_weight(s, p->part[i].off);
}

static void look_at_model(struct sight *s)
{
	for (uint32_t i = 0; i < s->m->desc.n_layer; i++) {
		const struct nsv_layer *layer = &s->m->layers[i];
		look_at_product(s, &layer->qkv);
		look_at_product(s, &layer->out);
		look_at_product(s, &layer->gate_up);
		look_at_product(s, &layer->down);
	}
	look_at_product(s, &s->m->head);
}

static void load(const char *path, const struct nsv_numa *numa, struct sight *s)
{
	const struct nsv_backend *cpu;
	struct nsv_model_config config = {.max_row = 1, .max_out = 1, .numa = numa};
	struct nsv_err err = {""};
	struct nsv_team *team;
	struct nsv_model *m;
	struct nsv_gguf *g;

	assert_int_equal(nsv_backend_choose("cpu", &cpu, &err), 0);
	assert_int_equal(nsv_gguf_open(path, &g, &err), 0);
	assert_int_equal(nsv_team_new(s->n_thread, &team), 0);
	if (nsv_model_new(g, cpu, team, &config, &m, &err) < 0)
		fail_msg("%s", err.text);
	s->m = m;
	look_at_model(s);
	nsv_model_free(m);
	nsv_team_free(team);
	nsv_gguf_close(g);
}

static void test_weights(void **state)
{
	const uint32_t n_thread[] = {2, 6, 15};
	char path[512];
	const char *why = "";
	(void)state;

	for (size_t k = 0; k < NSV_ARRAY_LEN(n_thread); k++) {
		struct nsv_numa numa = NSV_NUMA_NONE;
		struct sight s = {.numa = &numa, .n_thread = n_thread[k]};
		nsv_numa_begin(&numa, n_thread[k]);
		if (numa.n_node < 2 || !model_run_path(path, &why)) {
			print_message("%s\n", *why ? why : "a machine of one node");
			skip();
		}
		load(path, &numa, &s);
		print_message("%u threads: %llu pages of their own, %llu elsewhere; others %llu "
			      "and %llu\n",
			n_thread[k], (unsigned long long)s.n_own, (unsigned long long)s.n_wrong,
			(unsigned long long)s.n_shared[0], (unsigned long long)s.n_shared[1]);
		assert_true(s.n_own > 1000);
		assert_true(s.n_wrong < s.n_own / 500); /* a node may be full */
		if (n_thread[k] > NSV_CPU_FEW) {
			assert_true(s.n_shared[0] + HUGE > s.n_shared[1] * 9 / 10);
			assert_true(s.n_shared[1] + HUGE > s.n_shared[0] * 9 / 10);
		}
		nsv_numa_deinit(&numa);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_weights),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
