/* The rings and logs between two threads, at every small size, and against a peer that lies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>

#include "shm/ring.h"
#include "tests/tools/rnd.h"

/* One ring's shared memory, far from its wrap or right before it. */
struct shared {
	struct nsv_sqe sqes[64];
	struct nsv_cqe cqes[64];
	_Alignas(64) uint32_t tail;
	_Alignas(64) uint32_t head;
};

struct run {
	struct shared *m;
	uint32_t n, start;
	uint64_t count;
};

static struct nsv_sq_producer sq_producer(const struct run *r)
{
	return (struct nsv_sq_producer){r->m->sqes, &r->m->tail, &r->m->head, r->n - 1, r->start};
}

static struct nsv_sq_consumer sq_consumer(const struct run *r)
{
	return (struct nsv_sq_consumer){r->m->sqes, &r->m->tail, &r->m->head, r->n - 1, r->start};
}

static struct nsv_cq_producer cq_producer(const struct run *r)
{
	return (struct nsv_cq_producer){r->m->cqes, &r->m->tail, &r->m->head, r->n - 1, r->start};
}

static struct nsv_cq_consumer cq_consumer(const struct run *r)
{
	return (struct nsv_cq_consumer){r->m->cqes, &r->m->tail, &r->m->head, r->n - 1, r->start};
}

static void *produce_sq(void *data)
{
	const struct run *r = data;
	struct nsv_sq_producer sq = sq_producer(r);

	for (uint64_t i = 0; i < r->count;) {
		const struct nsv_sqe e = {
			.request_id = i, .target_id = ~i, .branch = (uint32_t)i * 7};
		int ret = nsv_sq_put(&sq, &e);
		if (ret < 0)
			return (void *)1;
		if (ret == 0)
			i++;
		if (ret > 0 || i % 5 == 0 || i == r->count) /* bursts */
			nsv_sq_publish(&sq);
		if (ret > 0)
			sched_yield();
	}
	return NULL;
}

static void consume_sq(const struct run *r)
{
	struct nsv_sq_consumer sq = sq_consumer(r);
	struct nsv_sqe e;
	uint32_t n = 0;

	for (uint64_t i = 0; i < r->count;) {
		assert_int_equal(nsv_sq_ready(&sq, &n), 0);
		if (n == 0)
			sched_yield();
		for (; n > 0; n--, i++) {
			nsv_sq_peek(&sq, &e);
			if (e.request_id != i || e.target_id != ~i || e.branch != (uint32_t)i * 7)
				fail_msg("entry %llu is torn or out of order",
					(unsigned long long)i);
			nsv_sq_advance(&sq);
		}
	}
}

static void *produce_cq(void *data)
{
	const struct run *r = data;
	struct nsv_cq_producer cq = cq_producer(r);

	for (uint64_t i = 0; i < r->count;) {
		const struct nsv_cqe e = {
			.request_id = i, .text_end = ~i, .token_end = (uint32_t)i * 3};
		int ret = nsv_cq_post(&cq, &e);
		if (ret < 0)
			return (void *)1;
		if (ret == 0)
			i++;
		else
			sched_yield();
	}
	return NULL;
}

static void consume_cq(const struct run *r)
{
	struct nsv_cq_consumer cq = cq_consumer(r);
	struct nsv_cqe e;
	uint32_t n = 0;

	for (uint64_t i = 0; i < r->count; i += n) {
		assert_int_equal(nsv_cq_ready(&cq, &n), 0);
		if (n == 0)
			sched_yield();
		for (uint32_t k = 0; k < n; k++) {
			nsv_cq_peek(&cq, k, &e);
			if (e.request_id != i + k || e.text_end != ~(i + k))
				fail_msg("entry %llu is torn or out of order",
					(unsigned long long)(i + k));
		}
		if (n > 0)
			nsv_cq_advance(&cq, n);
	}
}

static void race(
	uint32_t n, uint64_t count, void *(*produce)(void *), void (*consume)(const struct run *))
{
	struct shared *m = aligned_alloc(64, sizeof(*m));
	struct run r = {m, n, (uint32_t)0 - t_below(1000), count};
	pthread_t thread;
	void *ret;

	memset(m, 0, sizeof(*m));
	m->tail = m->head = r.start; /* the indices wrap on the way */
	assert_int_equal(pthread_create(&thread, NULL, produce, &r), 0);
	consume(&r);
	pthread_join(thread, &ret);
	assert_null(ret);
	free(m);
}

static void test_submissions(void **state)
{
	(void)state;
	for (uint32_t n = 1; n <= 64; n *= 2)
		race(n, n < 4 ? 50000 : 1000000, produce_sq, consume_sq);
}

static void test_completions(void **state)
{
	(void)state;
	for (uint32_t n = 1; n <= 64; n *= 2)
		race(n, n < 4 ? 50000 : 1000000, produce_cq, consume_cq);
}

/* Full and empty are told apart at every size and start. */
static void test_full(void **state)
{
	const struct nsv_cqe e = {0};

	(void)state;
	for (uint32_t n = 1; n <= 64; n *= 2) {
		struct shared m = {0};
		struct run r = {&m, n, (uint32_t)t_rand(), 0};
		m.tail = m.head = r.start;
		struct nsv_cq_producer p = cq_producer(&r);
		struct nsv_cq_consumer c = cq_consumer(&r);
		uint32_t ready;
		assert_int_equal(nsv_cq_ready(&c, &ready), 0);
		assert_int_equal(ready, 0);
		for (uint32_t i = 0; i < n; i++)
			assert_int_equal(nsv_cq_post(&p, &e), 0);
		assert_int_equal(nsv_cq_post(&p, &e), 1);
		assert_int_equal(nsv_cq_ready(&c, &ready), 0);
		assert_int_equal(ready, n);
		assert_int_equal(nsv_cq_taken(&p, r.start), 0);
		nsv_cq_advance(&c, 1);
		assert_int_equal(nsv_cq_taken(&p, r.start), 1);
		assert_int_equal(nsv_cq_taken(&p, (uint64_t)r.start + n), 0);
		assert_int_equal(nsv_cq_post(&p, &e), 0);
	}
}

static void test_lies(void **state)
{
	const struct nsv_sqe s = {0};
	const struct nsv_cqe c = {0};

	(void)state;
	for (int i = 0; i < 1000; i++) {
		struct shared m = {0};
		struct run r = {&m, 1u << t_below(7), (uint32_t)t_rand(), 0};
		uint32_t beyond = r.n + 1 + t_below(UINT32_MAX - 2 * r.n);
		struct nsv_sq_producer sp = sq_producer(&r);
		struct nsv_sq_consumer sc = sq_consumer(&r);
		struct nsv_cq_producer cp = cq_producer(&r);
		struct nsv_cq_consumer cc = cq_consumer(&r);
		uint32_t n;
		m.tail = r.start + beyond;
		m.head = r.start - beyond;
		assert_int_equal(nsv_sq_ready(&sc, &n), -EPROTO);
		assert_int_equal(nsv_cq_ready(&cc, &n), -EPROTO);
		assert_int_equal(nsv_sq_put(&sp, &s), -EPROTO);
		assert_int_equal(nsv_cq_post(&cp, &c), -EPROTO);
		assert_int_equal(nsv_cq_taken(&cp, 0), -EPROTO);
	}
}

static void test_log(void **state)
{
	enum { N = 256 };
	int32_t log[N], in[N], out[N];
	uint64_t end = t_rand() >> 33 << 20, read = end;
	uint32_t space = 0;
	int32_t next = 0, expect = 0;

	(void)state;
	for (int i = 0; i < 20000; i++) {
		assert_int_equal(nsv_log_space(N, end, read, &space), 0);
		uint32_t n = t_below(space + 1);
		for (uint32_t k = 0; k < n; k++)
			in[k] = next++;
		nsv_log_put(log, N, sizeof(int32_t), end, in, n);
		end += n;
		n = t_below((uint32_t)(end - read) + 1);
		nsv_log_get(log, N, sizeof(int32_t), read, out, n);
		for (uint32_t k = 0; k < n; k++)
			assert_int_equal(out[k], expect++);
		read += n;
	}
	assert_int_equal(nsv_log_space(N, end, end + 1, &space), -EPROTO);
	assert_int_equal(nsv_log_space(N, end, end - N - 1, &space), -EPROTO);
	assert_int_equal(nsv_log_space(N, end, end - N, &space), 0);
	assert_int_equal(space, 0);
}

/* One bell for one sleep, from each publisher. */
static void test_bells(void **state)
{
	uint32_t wait = 0, io = 0, engine = 0;

	(void)state;
	assert_false(nsv_wait_must_ring(&wait, &io));
	for (int i = 0; i < 10; i++) {
		nsv_wait_begin(&wait);
		assert_true(nsv_wait_must_ring(&wait, &io));
		assert_false(nsv_wait_must_ring(&wait, &io));
		assert_true(nsv_wait_must_ring(&wait, &engine));
		nsv_wait_end(&wait);
		assert_false(nsv_wait_must_ring(&wait, &io));
	}
}

static void test_cursor(void **state)
{
	struct nsv_down_slot slot = {0};
	uint64_t cursor = 0;

	(void)state;
	assert_false(nsv_cursor_move(&cursor, 10, &slot));
	assert_int_equal(cursor, 10);
	nsv_slot_stall(&slot);
	assert_true(nsv_cursor_move(&cursor, 20, &slot));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_submissions),
		cmocka_unit_test(test_completions),
		cmocka_unit_test(test_full),
		cmocka_unit_test(test_lies),
		cmocka_unit_test(test_log),
		cmocka_unit_test(test_bells),
		cmocka_unit_test(test_cursor),
	};

	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
