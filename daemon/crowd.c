/* Trials of fewer and of more members. */
#include "daemon/crowd.h"

#define SHORTEST_NS 500000000u
#define LONGEST_NS 8000000000u

#define HELPED 0.75 /* of what a member waited before: a trial of less is kept */

void nsv_crowd_init(struct nsv_crowd *c, uint32_t most)
{
	*c = (struct nsv_crowd){.most = most, .n = most};
}

/* A rest long after the last one is short again. */
static void rest(struct nsv_crowd_rest *r, uint64_t now_ns)
{
	if (r->len_ns == 0 || now_ns > r->until_ns + LONGEST_NS)
		r->len_ns = SHORTEST_NS;
	r->until_ns = now_ns + r->len_ns;
	r->len_ns = nsv_min_u64(2 * r->len_ns, LONGEST_NS);
}

/* Members' worth of waiting that is too much. While one waits none gets on, so that n of them that
 * lose a share w of the time do the work of n * (1 - w): less than n - 1 where w is above 1 / n.
 * Below an eighth it is what any machine does beside. */
static bool is_bad(const struct nsv_crowd *c, double waited)
{
	return waited > 0.125 && waited * c->n > 0.75;
}

static void try(struct nsv_crowd *c, int trial, uint32_t n)
{
	c->trial = trial;
	c->from = c->n;
	c->n = n;
	c->went_wrong = false;
}

static void end_trial(struct nsv_crowd *c, bool keep)
{
	c->trial = NSV_CROWD_STEADY;
	if (!keep)
		c->n = c->from;
}

/* Without as many as had no processor, though one stays. */
static uint32_t fewer(const struct nsv_crowd *c, double waited)
{
	return c->n - (uint32_t)nsv_min((size_t)waited + 1, c->n - 1);
}

/* Those who are left wait again as all did: others take whatever there is, and more of us get more
 * of it. */
static bool is_in_vain(const struct nsv_crowd *c, double waited)
{
	return c->n < c->most && waited / c->n > HELPED * c->before;
}

/* A window may go wrong by accident: two do not. */
static void look(struct nsv_crowd *c, uint64_t now_ns, double waited)
{
	bool bad = is_bad(c, waited), in_vain = is_in_vain(c, waited), again = c->went_wrong;

	c->went_wrong = bad || in_vain;
	if (bad && again && c->n > 1 && now_ns >= c->less.until_ns) {
		c->before = waited / c->n;
		try(c, NSV_CROWD_LESS, fewer(c, waited));
	} else if (in_vain && again) {
		rest(&c->less, now_ns);
		c->n = c->most;
	} else if (!c->went_wrong && c->n < c->most && now_ns >= c->more.until_ns) {
		try(c, NSV_CROWD_MORE, c->n + 1);
	}
}

static void judge_less(struct nsv_crowd *c, uint64_t now_ns, double waited)
{
	bool helped = waited / c->n <= HELPED * c->before;

	if (!helped && c->n > 1) {
		c->n = fewer(c, waited);
		return;
	}
	rest(helped ? &c->more : &c->less, now_ns);
	end_trial(c, helped);
}

static void judge_more(struct nsv_crowd *c, uint64_t now_ns, double waited)
{
	bool bad = is_bad(c, waited);

	if (bad)
		rest(&c->more, now_ns);
	end_trial(c, !bad);
}

uint32_t nsv_crowd_next(struct nsv_crowd *c, uint64_t now_ns, uint64_t busy_ns, uint64_t delay_ns)
{
	double waited = (double)delay_ns / (double)busy_ns;

	if (c->trial == NSV_CROWD_LESS)
		judge_less(c, now_ns, waited);
	else if (c->trial == NSV_CROWD_MORE)
		judge_more(c, now_ns, waited);
	else
		look(c, now_ns, waited);
	return c->n;
}
