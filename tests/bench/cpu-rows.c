/* Operations on rows and passes of sampling: each over 65,536 rows of 576, which no cache holds, so
 * that memory is what limits them; in a step their rows lie in caches. Operations are counted as
 * the formulas need them, a multiply-add as two; bytes as they are read once, those that are only
 * written too, since their cache lines are.
 *
 * Not here: gathering and appending, which move and compute nothing. */
#include <math.h>
#include <sys/mman.h>

#include "kernels/scan.h"
#include "tests/bench/cpu.h"

#define N_ROW 65536u
#define N 576u
#define N_HEAD 9u
#define HEAD_DIM 64u
#define N_ELEM ((size_t)N_ROW * N)

enum kind { NORM, ADD, ROPE, GATE, QUANTISE, RANGE, WEIGH };

struct rows {
	const struct nsv_backend *b;
	enum kind kind;
	float *x, *y, *out; /* N_ELEM each; y: also weights, cosines and sines */
	void *acts;
};

static const struct {
	const char *name, *label;
	double ops, n_byte; /* of an element: read */
} kinds[N_ROWS_KERNEL] = {
	[NORM] = {"RMS norm", "norm", 4, 8},
	[ADD] = {"sum of two rows", "add", 1, 8},
	[ROPE] = {"rotation of heads", "rope", 3, 4 + 4.0 / N_HEAD},
	[GATE] = {"SiLU and gate", "gate", 29, 12},
	[QUANTISE] = {"activations to 8 bits", "to 8 bits", 5, 4 + 1.5},
	[RANGE] = {"largest logit, all finite", "greedy", 4, 4},
	[WEIGH] = {"weights of logits, their sum", "weights", 22, 4},
};

static void scan(const struct nsv_part *part, const struct rows *r)
{
	const struct nsv_scan_scale scale = {1, 1, nsv_scan_grain(N_ELEM)};
	const struct nsv_scan *s = nsv_scan_here();
	struct nsv_scan_range range;
	volatile double result;
	size_t begin, end;

	nsv_part_range(part, N_ELEM, 16, &begin, &end);
	if (r->kind == RANGE) {
		s->range(r->x + begin, (uint32_t)(end - begin), &range);
		result = (double)range.max;
	} else {
		result = s->weigh(r->x + begin, (uint32_t)(end - begin), &scale, NULL);
	}
	(void)result;
}

static void rows_part(const struct nsv_part *part, void *arg)
{
	const struct rows *r = arg;

	switch (r->kind) {
	case NORM:
		r->b->rmsnorm(part, r->out, r->x, r->y, N, N_ROW, N, 1e-5f);
		break;
	case ADD:
		r->b->add(part, r->out, r->x, N_ELEM);
		break;
	case ROPE:
		r->b->rope(part, r->out, N, r->y, N_ROW, N_HEAD, HEAD_DIM, HEAD_DIM, NSV_ROPE_NEOX);
		break;
	case GATE:
		r->b->gate(part, r->out, r->x, r->y, N, N_ROW, N, NSV_ACT_SILU);
		break;
	case QUANTISE:
		r->b->acts_set(part, r->acts, r->x, N, N_ROW, N);
		break;
	case RANGE:
	case WEIGH:
		scan(part, r);
		break;
	}
	nsv_team_barrier(part);
}

/* Turns by an eighth of a circle: what turns again and again keeps its size. */
static void fill(struct rows *r)
{
	for (size_t i = 0; i < N_ELEM; i++) {
		r->x[i] = (float)(i * 2654435761u >> 8 & 0xffff) * 0x1p-15f - 1;
		r->y[i] = (float)M_SQRT1_2;
	}
}

void measure_rows(
	struct nsv_team *team, const struct nsv_backend *b, struct rows_kernel ret[N_ROWS_KERNEL])
{
	size_t len = N_ELEM * sizeof(float), acts_len = b->acts_len(N_ROW, N);
	struct rows r = {b, NORM, map(len), map(len), map(len), map(acts_len)};

	fill(&r);
	for (int k = 0; k < N_ROWS_KERNEL; k++) {
		double ops = kinds[k].ops * (double)N_ELEM;

		r.kind = (enum kind)k;
		ret[k] = (struct rows_kernel){kinds[k].name, kinds[k].label, k >= RANGE,
			{ops / time_of(team, rows_part, &r), kinds[k].ops / kinds[k].n_byte}};
	}
	munmap(r.x, len);
	munmap(r.y, len);
	munmap(r.out, len);
	munmap(r.acts, acts_len);
}
