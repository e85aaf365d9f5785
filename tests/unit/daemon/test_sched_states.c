/* Every state that a small scheduler can come to: three sequences of a few tokens over three or
 * four blocks, with and without a host tier, on a device that runs one or two steps ahead. Breadth
 * first from the empty state over all events: a sequence comes (of each shape, or forked from
 * another), is cancelled, paused, resumed; a plan is made; the oldest plan's results come, each
 * sampled token the sequence's last or not. In each state that was not seen before: the audit;
 * every plan moves the oldest that is not paused; and from there, with nothing paused, all come to
 * their ends.
 *
 * Two states are one if they behave alike: sequences are taken in their turns, blocks are numbered
 * as they are found, counters count only where they are compared; with priorities turns that are
 * far apart are as good as further ones. The prefix cache, whose states have no end, is the
 * soak's. */
#define N_SEQ 3
#define CAP 4
#define BLOCK 2
#define MAX_BLOCK 4

#include "tests/unit/daemon/sched_rig.h"

#define MAX_AHEAD 2
#define MAX_TOKEN 7
#define MAX_NODE (1u << 20)
#define QUICK_NODE 20000
#define MAX_VECTOR 160
#define MAX_DRAIN 200
#define FAR 7 /* tags that are further apart are as good as this */

struct shape {
	uint32_t n_token, max_token, lp_to;
	int32_t priority;
};

struct config {
	const char *name;
	uint32_t n_block, n_host, ahead, n_shape;
	struct shape shapes[3];
	bool forks, priorities;
	uint32_t max_state; /* 0: to the end */
};

struct late {
	struct nsv_plan_item items[N_SEQ];
	uint64_t arrival[N_SEQ];
	uint32_t n_item;
};

/* The whole state, but for what the rig's members point to. */
struct world {
	struct rig r;
	struct late late[MAX_AHEAD];
	uint32_t n_late;
};

enum kind { ADD, FORK, CANCEL, PAUSE, PLAN, RESULT };

struct event {
	uint8_t kind, seq, arg;
};

struct node {
	uint32_t parent;
	struct event event;
};

static struct world w;
static const struct config *config;
static struct node *nodes;  /* (MAX_NODE) in the order they were found */
static uint64_t *seen;      /* (2 MAX_NODE) hashes of states; 0: free */
static uint32_t n_node, now; /* now: the node that is worked on */

/* ---- Failing: how it came to this */

static void print_way(uint32_t node)
{
	static const char *const names[] = {"add", "fork", "cancel", "pause", "plan", "result"};

	if (node == 0)
		return;
	print_way(nodes[node].parent);
	print_message("  %s %u %u\n", names[nodes[node].event.kind], nodes[node].event.seq,
		nodes[node].event.arg);
}

#define FAIL(...) \
	do { \
		print_message("%s:\n", config->name); \
		print_way(now); \
		fail_msg(__VA_ARGS__); \
	} while (0)

/* ---- Saving and restoring */

struct part {
	void *p;
	size_t len;
};

static uint32_t list_alloc(struct part *parts, struct nsv_block_alloc *a)
{
	const struct part list[] = {{a->next, a->n_block * sizeof(*a->next)},
		{a->ref, a->n_block * sizeof(*a->ref)},
		{a->cached, a->n_block * sizeof(*a->cached)}};

	memcpy(parts, list, sizeof(list));
	return NSV_ARRAY_LEN(list);
}

static uint32_t list_parts(struct part *parts)
{
	struct nsv_sched *s = &w.r.sched;
	const struct part list[] = {{&w, sizeof(w)}, {s->seqs, N_SEQ * sizeof(*s->seqs)},
		{s->users, N_SEQ * sizeof(*s->users)}, {s->run, N_SEQ * sizeof(*s->run)},
		{s->wait, N_SEQ * sizeof(*s->wait)},
		{s->host_next, w.r.host.n_block * sizeof(*s->host_next)}};
	uint32_t n = NSV_ARRAY_LEN(list);

	memcpy(parts, list, sizeof(list));
	n += list_alloc(parts + n, &w.r.alloc);
	if (config->n_host)
		n += list_alloc(parts + n, &w.r.host);
	return n;
}

static struct part parts[16];
static uint32_t n_part;

static size_t snapshot_len(void)
{
	size_t len = 0;

	n_part = list_parts(parts);
	for (uint32_t i = 0; i < n_part; i++)
		len += parts[i].len;
	return len;
}

static void save(char *to)
{
	for (uint32_t i = 0; i < n_part; to += parts[i++].len)
		if (parts[i].len)
			memcpy(to, parts[i].p, parts[i].len);
}

static void restore(const char *from)
{
	for (uint32_t i = 0; i < n_part; from += parts[i++].len)
		if (parts[i].len)
			memcpy(parts[i].p, from, parts[i].len);
}

/* ---- What tells states apart */

struct vector {
	uint8_t v[MAX_VECTOR];
	uint32_t n;
};

static void put(struct vector *v, uint64_t x)
{
	assert_true(v->n < MAX_VECTOR && x < 256);
	v->v[v->n++] = (uint8_t)x;
}

static uint32_t near(uint64_t from, uint64_t to)
{
	return to - from > FAR ? FAR : (uint32_t)(to - from);
}

/* Who is there, in the order of their turns; their indices do not tell states apart. */
struct turns {
	uint32_t n;
	uint8_t seq[N_SEQ], place[N_SEQ];
};

static struct turns list_turns(void)
{
	const struct nsv_sched_seq *seqs = w.r.sched.seqs;
	struct turns t = {.n = 0};

	for (uint8_t seq = 0; seq < N_SEQ; seq++) {
		uint32_t i = t.n;
		if (!seqs[seq].where)
			continue;
		for (t.n++; i > 0 && rig_before(&w.r, seq, t.seq[i - 1]); i--)
			t.seq[i] = t.seq[i - 1];
		t.seq[i] = seq;
	}
	for (uint8_t i = 0; i < t.n; i++)
		t.place[t.seq[i]] = i;
	return t;
}

static bool has_leader(const struct nsv_sched_seq *q)
{
	return q->leader != NSV_SCHED_NO_LEADER && w.r.sched.seqs[q->leader].where &&
	       w.r.sched.seqs[q->leader].arrival == q->leader_arrival;
}

static void put_seq(struct vector *v, const struct turns *t, uint32_t seq, uint8_t *names,
	uint8_t *n_name)
{
	const struct nsv_sched *s = &w.r.sched;
	const struct nsv_sched_seq *q = &s->seqs[seq];

	uint64_t flags = q->paused | (q->n_preempt > 0) << 1 |
			 (q->where == NSV_SCHED_WAITING && q->tried_at == s->n_change) << 2;
	put(v, q->where);
	put(v, flags);
	put(v, has_leader(q) ? t->place[q->leader] : N_SEQ);
	const uint64_t counts[] = {q->n_token, q->n_pending, q->n_past, q->n_done, q->max_token,
		q->n_host_token, q->lp_from, q->lp_to, q->n_lp_pending,
		(uint64_t)(q->priority + 1), q->n_passed};
	for (size_t i = 0; i < NSV_ARRAY_LEN(counts); i++)
		put(v, counts[i]);
	for (uint32_t i = 0; i < q->table.n; i++) {
		uint8_t *name = &names[q->table.block[i]];
		if (!*name)
			*name = ++*n_name;
		put(v, *name);
	}
}

/* How far apart the turns are: with priorities they change. */
static void put_turns(struct vector *v, const struct turns *t)
{
	const struct nsv_sched *s = &w.r.sched;
	uint64_t finish = s->users[0].finish;

	for (uint32_t i = 1; i < t->n; i++)
		put(v, near(s->seqs[t->seq[i - 1]].tag, s->seqs[t->seq[i]].tag));
	put(v, s->virtual_time > finish ? 0 : near(s->virtual_time, finish));
}

static void put_late(struct vector *v, const struct turns *t, const struct late *l)
{
	put(v, l->n_item);
	for (uint32_t i = 0; i < l->n_item; i++) {
		const struct nsv_plan_item *item = &l->items[i];
		const struct nsv_sched_seq *q = &w.r.sched.seqs[item->seq];
		bool there = q->arrival == l->arrival[i];
		put(v, there ? t->place[item->seq] : N_SEQ);
		put(v, there | (there && q->n_preempt == item->n_preempt) << 1 | item->sample << 2);
		put(v, item->n_past + item->n_row);
		put(v, item->n_lp);
	}
}

static uint64_t hash_state(void)
{
	struct vector v = {.n = 0};
	uint8_t names[MAX_BLOCK] = {0}, n_name = 0;
	uint64_t h = 0x243f6a8885a308d3ull;

	struct turns t = list_turns();
	for (uint32_t i = 0; i < t.n; i++)
		put_seq(&v, &t, t.seq[i], names, &n_name);
	if (config->priorities)
		put_turns(&v, &t);
	for (uint32_t i = 0; i < w.n_late; i++)
		put_late(&v, &t, &w.late[i]);
	for (uint32_t i = 0; i < v.n; i++) {
		h = (h ^ v.v[i]) * 0x9e3779b97f4a7c15ull;
		h ^= h >> 29;
	}
	return h ? h : 1;
}

/* true: it was not there. */
static bool enter(uint64_t hash)
{
	uint32_t i = (uint32_t)hash & (2 * MAX_NODE - 1);

	while (seen[i] && seen[i] != hash)
		i = (i + 1) & (2 * MAX_NODE - 1);
	if (seen[i])
		return false;
	seen[i] = hash;
	return true;
}

/* ---- Events */

static void come(uint32_t seq, const struct shape *shape)
{
	w.r.seqs[seq].max_token = shape->max_token;
	for (int32_t i = 0; i < MAX_TOKEN; i++)
		w.r.seqs[seq].tokens[i] = (int32_t)seq * 100 + i;
	struct nsv_sched_new n = rig_describe(&w.r, seq, shape->n_token);
	n.lp_to = shape->lp_to;
	n.priority = shape->priority;
	nsv_sched_add(&w.r.sched, seq, &n);
	nsv_sched_set_lp_room(&w.r.sched, seq, 2);
}

static uint32_t known(uint32_t seq)
{
	return w.r.sched.seqs[seq].n_token - w.r.sched.seqs[seq].n_pending;
}

static void fork_off(uint32_t seq, uint32_t leader)
{
	w.r.seqs[seq].max_token = w.r.sched.seqs[leader].max_token;
	for (int32_t i = 0; i < MAX_TOKEN; i++)
		w.r.seqs[seq].tokens[i] = (int32_t)seq * 100 + i;
	rig_fork(&w.r, seq, leader, known(leader));
}

/* The oldest that is not paused has moved, unless what it needs is under way. */
static void check_progress(uint32_t oldest)
{
	const struct nsv_sched_seq *q = &w.r.sched.seqs[oldest];

	if (q->n_pending == 0 && q->n_lp_pending == 0 && !rig_item(&w.r, oldest))
		FAIL("the oldest, %u, does not move", oldest);
}

static void plan(void)
{
	struct late *l = &w.late[w.n_late];
	uint32_t oldest = rig_oldest(&w.r);

	nsv_sched_plan(&w.r.sched, &w.r.plan);
	if (oldest < N_SEQ)
		check_progress(oldest);
	rig_carry_out(&w.r);
	if (w.r.plan.n_item == 0)
		return;
	memset(l, 0, sizeof(*l));
	l->n_item = w.r.plan.n_item;
	for (uint32_t i = 0; i < l->n_item; i++) {
		l->items[i] = w.r.plan.items[i];
		l->arrival[i] = w.r.sched.seqs[l->items[i].seq].arrival;
	}
	w.n_late++;
}

/* The oldest plan's results: bit i of `ends`: item i's token is its sequence's last. */
static void result(uint32_t ends)
{
	struct late l = w.late[0];

	memmove(&w.late[0], &w.late[1], sizeof(w.late[0]));
	w.n_late--;
	for (uint32_t i = 0; i < l.n_item; i++) {
		uint32_t seq = l.items[i].seq;
		struct nsv_sched_seq *q = &w.r.sched.seqs[seq];
		if (q->arrival != l.arrival[i])
			continue;
		if (nsv_sched_computed(&w.r.sched, &l.items[i]) < 0)
			FAIL("results of %u are refused", seq);
		if (!l.items[i].sample)
			continue;
		nsv_sched_known(&w.r.sched, seq);
		if ((ends >> i & 1) || known(seq) >= q->max_token)
			nsv_sched_remove(&w.r.sched, seq);
	}
}

static void apply(struct event e)
{
	struct nsv_sched *s = &w.r.sched;

	if (e.kind == ADD)
		come(e.seq, &config->shapes[e.arg]);
	else if (e.kind == FORK)
		fork_off(e.seq, e.arg);
	else if (e.kind == CANCEL)
		nsv_sched_remove(s, e.seq);
	else if (e.kind == PAUSE)
		nsv_sched_pause(s, e.seq, e.arg);
	else if (e.kind == PLAN)
		plan();
	else
		result(e.arg);
}

static uint32_t list_for_seq(uint32_t seq, struct event *list)
{
	const struct nsv_sched_seq *q = &w.r.sched.seqs[seq];
	uint32_t n = 0;

	if (q->where) {
		list[n++] = (struct event){CANCEL, (uint8_t)seq, 0};
		list[n++] = (struct event){PAUSE, (uint8_t)seq, !q->paused};
		return n;
	}
	for (uint32_t i = 0; i < config->n_shape; i++)
		list[n++] = (struct event){ADD, (uint8_t)seq, (uint8_t)i};
	for (uint32_t i = 0; config->forks && i < N_SEQ; i++)
		if (w.r.sched.seqs[i].where && known(i) < w.r.sched.seqs[i].max_token)
			list[n++] = (struct event){FORK, (uint8_t)seq, (uint8_t)i};
	return n;
}

static uint32_t list_events(struct event *list)
{
	uint32_t n = 0;

	for (uint32_t seq = 0; seq < N_SEQ; seq++)
		n += list_for_seq(seq, list + n);
	if (w.n_late < config->ahead)
		list[n++] = (struct event){PLAN, 0, 0};
	for (uint32_t ends = 0; w.n_late > 0 && ends < 1u << w.late[0].n_item; ends++)
		if ((ends & ~1u) == 0 || config->ahead == 1)
			list[n++] = (struct event){RESULT, 0, (uint8_t)ends};
	return n;
}

/* ---- The search */

static void check_audit(void)
{
	struct nsv_err err = {""};

	if (nsv_sched_audit(&w.r.sched, &err) < 0)
		FAIL("%s", err.text);
}

/* With nothing paused, everybody comes to an end. */
static void check_end(void)
{
	struct nsv_sched *s = &w.r.sched;

	for (uint32_t i = 0; i < N_SEQ; i++)
		if (s->seqs[i].where)
			nsv_sched_pause(s, i, false);
	for (int i = 0; s->n_run + s->n_wait > 0 || w.n_late > 0; i++) {
		if (i == MAX_DRAIN)
			FAIL("stuck: %u run and %u wait", s->n_run, s->n_wait);
		if (w.n_late < config->ahead)
			plan();
		if (w.n_late > 0)
			result(0);
	}
	if (w.r.alloc.n_free != w.r.alloc.n_block || w.r.host.n_free != w.r.host.n_block)
		FAIL("blocks are lost");
}

struct level {
	char *states;
	uint32_t *ids; /* in nodes */
	uint32_t n, cap;
};

static void push(struct level *l, size_t len, uint32_t id)
{
	if (l->n == l->cap) {
		l->cap = l->cap ? 2 * l->cap : 1024;
		l->states = realloc(l->states, l->cap * len);
		l->ids = realloc(l->ids, l->cap * sizeof(*l->ids));
		assert_true(l->states && l->ids);
	}
	save(l->states + l->n * len);
	l->ids[l->n++] = id;
}

/* All that one state leads to. */
static void expand(const char *state, uint32_t id, struct level *next, size_t len)
{
	struct event events[64];

	restore(state);
	uint32_t n = list_events(events);
	for (uint32_t i = 0; i < n && n_node < MAX_NODE; i++) {
		restore(state);
		nodes[n_node] = (struct node){id, events[i]};
		now = n_node;
		apply(events[i]);
		check_audit();
		if (!enter(hash_state()))
			continue;
		push(next, len, n_node++);
		check_end();
	}
}

static bool search(uint32_t *ret_depth)
{
	struct level this = {0}, next = {0};
	size_t len = snapshot_len();
	uint32_t max = getenv("NANOSERVE_QUICK") ? QUICK_NODE
		       : config->max_state       ? config->max_state
						 : MAX_NODE;

	memset(seen, 0, 2 * MAX_NODE * sizeof(*seen));
	n_node = 1;
	enter(hash_state());
	push(&this, len, 0);
	for (*ret_depth = 0; this.n > 0 && n_node < max; ++*ret_depth) {
		for (uint32_t i = 0; i < this.n && n_node < max; i++)
			expand(this.states + i * len, this.ids[i], &next, len);
		struct level swap = this;
		this = next;
		next = swap;
		next.n = 0;
	}
	bool whole = this.n == 0;
	free(this.states);
	free(this.ids);
	free(next.states);
	free(next.ids);
	return whole;
}

static void explore(const struct config *c)
{
	uint32_t depth;

	config = c;
	w.n_late = 0;
	rig_init(&w.r, (struct rig_size){c->n_block, c->n_host, 3, false});
	w.r.sched.mixed_tokens = 2;
	bool whole = search(&depth);
	print_message("%s: %u states, %s, %u events deep\n", c->name, n_node,
		whole ? "all that there are" : "stopped there", depth);
	assert_true(whole || c->max_state || getenv("NANOSERVE_QUICK"));
	rig_deinit(&w.r);
}

static void test_all_states(void **state)
{
	static const struct config configs[] = {
		{"two shapes, swap", 3, 2, 1, 2, {{1, 4, 0, 0}, {3, 6, 0, 0}}, false, false, 0},
		{"forks, swap", 4, 2, 1, 1, {{3, 6, 0, 0}}, true, false, 0},
		{"forks, one step ahead", 3, 0, 2, 1, {{2, 5, 0, 0}}, true, false, 0},
		{"swap, one step ahead", 3, 2, 2, 1, {{2, 5, 0, 0}}, false, false, 0},
		{"log-probabilities, one step ahead", 4, 1, 2, 1, {{4, 5, 3, 0}}, false, false, 0},
		{"priorities", 4, 0, 1, 2, {{3, 5, 0, 0}, {2, 5, 0, 1}}, false, true, 100000},
	};
	(void)state;

	nodes = calloc(MAX_NODE, sizeof(*nodes));
	seen = calloc(2 * MAX_NODE, sizeof(*seen));
	assert_true(nodes && seen);
	for (size_t i = 0; i < NSV_ARRAY_LEN(configs); i++)
		explore(&configs[i]);
	free(nodes);
	free(seen);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_states),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
