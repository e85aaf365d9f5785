/* Every interleaving of the sleep protocol and of the rule of one event a slot, on a memory that
 * lets stores wait in a buffer while later loads run ahead (and lets the waiter's two stores arrive
 * in either order). The protocol as written loses no wake-up; each way of breaking it is shown to.
 *
 *   publisher, for i = 1 .. N               waiter, until it has delivered N
 *   P0 end = i                              W0 drain the socket
 *   P1 fence (B)                            W1 tail != head? else W5
 *   P2 last event taken? tail + 1, else     W2 head = tail
 *      the next i                           W3 fence (B)
 *   P3 fence (C)                            W4 delivered = end; W1
 *   P4 wait odd and not rung for? bell      W5 wait + 1: odd
 *                                           W6 fence (C)
 *                                           W7 tail != head? wait + 1, W2
 *                                           W8 poll: sleeps until there is a bell
 *                                           W9 wait + 1: even; W0
 *
 * A ring of one entry is enough for it: an event is posted only when the last one was taken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum breakage {
	SOUND = 0,
	NO_FENCE_P1 = 1,
	NO_FENCE_P3 = 2,
	NO_FENCE_W3 = 4,
	NO_FENCE_W6 = 8,
	NO_SECOND_LOOK = 16,   /* W7 goes to sleep without looking */
	DRAIN_AFTER_LOOK = 32, /* the socket is drained between W7 and W8 */
	BOOLEAN_FLAG = 64, /* the wait word is 1 or 0, and a bell is sent once for the value 1 */
};

enum { NONE = 0xff };

/* Memory, the stores on their way to it (NONE: none), and both sides' private state. */
struct model {
	uint8_t end, tail, head, wait, bells;
	uint8_t b_end, b_tail, b_head, b_wait;
	uint8_t p, i, my_tail, rung;
	uint8_t w, my_head, my_wait, delivered;
};

#define N_ITEM 4
#define N_TABLE (1u << 22)

struct explorer {
	struct model *seen; /* (N_TABLE) open addressing; p == NONE: empty */
	struct model *queue;
	size_t n;
	unsigned int broken;
	bool lost;
};

static bool model_equal(const struct model *a, const struct model *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

static void visit(struct explorer *x, struct model m)
{
	const unsigned char *bytes = (const unsigned char *)&m;
	uint64_t hash = 14695981039346656037ull;

	for (size_t k = 0; k < sizeof(m); k++)
		hash = (hash ^ bytes[k]) * 1099511628211ull;
	size_t at = (hash ^ hash >> 32) % N_TABLE;
	while (x->seen[at].p != NONE) {
		if (model_equal(&x->seen[at], &m))
			return;
		at = (at + 1) % N_TABLE;
	}
	assert_true(x->n < N_TABLE / 2);
	x->seen[at] = m;
	x->queue[x->n++] = m;
}

/* Stores that reach memory. tail is a release: not before end. */
static bool commit(struct explorer *x, struct model m)
{
	struct model next = m;
	bool any = false;

	if (m.b_end != NONE) {
		next.end = m.b_end;
		next.b_end = NONE;
		visit(x, next);
		any = true;
	}
	next = m;
	if (m.b_tail != NONE && m.b_end == NONE) {
		next.tail = m.b_tail;
		next.b_tail = NONE;
		visit(x, next);
		any = true;
	}
	next = m;
	if (m.b_head != NONE) {
		next.head = m.b_head;
		next.b_head = NONE;
		visit(x, next);
		any = true;
	}
	next = m;
	if (m.b_wait != NONE) {
		next.wait = m.b_wait;
		next.b_wait = NONE;
		visit(x, next);
		any = true;
	}
	return any;
}

/* One step of the publisher; false: it cannot move. */
static bool publish(struct explorer *x, struct model m)
{
	bool flushed = m.b_end == NONE && m.b_tail == NONE;

	switch (m.p) {
	case 0:
		if (m.i == N_ITEM || m.b_end != NONE)
			return false;
		m.b_end = ++m.i;
		m.p = 1;
		break;
	case 1:
		if (!flushed && !(x->broken & NO_FENCE_P1))
			return false;
		m.p = 2;
		break;
	case 2:
		if (m.head != m.my_tail) {
			m.p = 0;
			break;
		}
		if (m.b_tail != NONE)
			return false;
		m.b_tail = ++m.my_tail;
		m.p = 3;
		break;
	case 3:
		if (!flushed && !(x->broken & NO_FENCE_P3))
			return false;
		m.p = 4;
		break;
	default:
		if ((m.wait & 1) && m.wait != m.rung) {
			m.rung = m.wait;
			m.bells = 1; /* more bells wake no better */
		}
		m.p = 0;
	}
	visit(x, m);
	return true;
}

/* The wait word goes from even to odd or back. */
static bool toggle(struct explorer *x, struct model *m)
{
	if (m->b_wait != NONE)
		return false;
	m->my_wait = x->broken & BOOLEAN_FLAG ? !m->my_wait : m->my_wait + 1;
	m->b_wait = m->my_wait;
	return true;
}

/* W5 to W9: going to sleep, and waking. */
static bool sleep_step(struct explorer *x, struct model m)
{
	bool flushed = m.b_head == NONE && m.b_wait == NONE;
	bool blind = x->broken & NO_SECOND_LOOK;

	switch (m.w) {
	case 5:
		if (!toggle(x, &m))
			return false;
		m.w = 6;
		break;
	case 6:
		if (!flushed && !(x->broken & NO_FENCE_W6))
			return false;
		m.w = 7;
		break;
	case 7:
		if (m.tail == m.my_head || blind) {
			m.w = 8;
			if (x->broken & DRAIN_AFTER_LOOK)
				m.w = 10;
			break;
		}
		if (!toggle(x, &m))
			return false;
		m.w = 2;
		break;
	case 8:
		if (m.bells == 0)
			return false;
		m.w = 9;
		break;
	case 10:
		m.bells = 0;
		m.w = 8;
		break;
	default:
		if (!toggle(x, &m))
			return false;
		m.w = 0;
	}
	visit(x, m);
	return true;
}

static bool wait_step(struct explorer *x, struct model m)
{
	bool flushed = m.b_head == NONE && m.b_wait == NONE;

	if (m.delivered == N_ITEM)
		return true; /* done: nothing is lost */
	switch (m.w) {
	case 0:
		m.bells = 0;
		m.w = 1;
		break;
	case 1:
		m.w = m.tail != m.my_head ? 2 : 5;
		break;
	case 2:
		if (m.b_head != NONE)
			return false;
		m.my_head = m.tail;
		m.b_head = m.my_head;
		m.w = 3;
		break;
	case 3:
		if (!flushed && !(x->broken & NO_FENCE_W3))
			return false;
		m.w = 4;
		break;
	case 4:
		m.delivered = m.end;
		m.w = 1;
		break;
	default:
		return sleep_step(x, m);
	}
	visit(x, m);
	return true;
}

/* All reachable states. lost: one in which nobody can move and not all was delivered. */
static struct explorer explore(unsigned int broken)
{
	struct explorer x = {.broken = broken};

	x.seen = malloc(N_TABLE * sizeof(*x.seen));
	x.queue = malloc(N_TABLE / 2 * sizeof(*x.queue));
	memset(x.seen, NONE, N_TABLE * sizeof(*x.seen));
	visit(&x, (struct model){.b_end = NONE, .b_tail = NONE, .b_head = NONE, .b_wait = NONE});
	for (size_t k = 0; k < x.n && !x.lost; k++) {
		struct model m = x.queue[k];
		bool moves = commit(&x, m);
		moves |= publish(&x, m);
		moves |= wait_step(&x, m);
		x.lost = !moves;
	}
	free(x.seen);
	free(x.queue);
	return x;
}

static void test_sound(void **state)
{
	struct explorer x = explore(SOUND);

	(void)state;
	printf("%zu states\n", x.n);
	assert_false(x.lost);
	assert_true(x.n > 1000);
}

static void test_broken(void **state)
{
	static const struct {
		unsigned int how;
		const char *name;
	} ways[] = {
		{NO_FENCE_P1, "no fence P1"},
		{NO_FENCE_P3, "no fence P3"},
		{NO_FENCE_W3, "no fence W3"},
		{NO_FENCE_W6, "no fence W6"},
		{NO_SECOND_LOOK, "no second look"},
		{DRAIN_AFTER_LOOK, "drain after the look"},
		{BOOLEAN_FLAG, "a flag that does not count"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		struct explorer x = explore(ways[i].how);
		printf("%s: %s after %zu states\n", ways[i].name,
			x.lost ? "lost wake-up" : "nothing lost", x.n);
		assert_true(x.lost);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sound),
		cmocka_unit_test(test_broken),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
