/* The daemon's io thread as a client meets it: round trips of NOP, entries a second, prompts. */
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include "shm/clock.h"
#include "tests/bench/ipc.h"
#include "tests/tools/ask.h"
#include "tests/tools/raw.h"
#include "tests/tools/tiny.h"

#define N_ENTRY (1u << 20)
#define N_RING 1024u
#define BURST 64u /* entries that are published together */

static char model[64];
static struct nsv_test_daemon spinning, blocking; /* with and without a spin before it sleeps */

void start_daemons(void)
{
	const char *extra[] = {"--threads", "1", "--kv-blocks", "64", NULL, NULL, NULL};

	nsv_tiny_model(model, sizeof(model));
	if (nsv_test_daemon_start(&spinning, model, extra) < 0)
		die("the daemon does not start");
	extra[4] = "--spin-us";
	extra[5] = "0";
	if (nsv_test_daemon_start(&blocking, model, extra) < 0)
		die("the daemon does not start");
	pin(spinning.pid, other_place(AWAKE));
	pin(blocking.pid, other_place(ONE_CPU));
}

void stop_daemons(void)
{
	nsv_test_daemon_stop(&spinning, SIGTERM);
	nsv_test_daemon_stop(&blocking, SIGTERM);
	unlink(model);
}

void take_nop(enum mode mode, double *us, size_t n)
{
	struct nsv_test_daemon *d = mode == ONE_CPU ? &blocking : &spinning;
	struct nsv_client *client = open_client(d->socket, mode == AWAKE);

	for (size_t i = 0; i < n; i++) {
		if (mode == ASLEEP)
			spin_ns(ASLEEP_PAUSE_NS);
		uint64_t start = nsv_now_ns();
		if (nsv_client_ping(client, 10000) < 0)
			die("no answer to a NOP");
		us[i] = (double)(nsv_now_ns() - start) / 1e3;
	}
	nsv_client_close(client);
}

/* ---- Entries a second */

static uint32_t take_replies(struct nsv_raw *r)
{
	struct nsv_cqe c;
	uint32_t n;

	if (nsv_cq_ready(&r->reply, &n) < 0)
		die("a ring index is impossible");
	for (uint32_t i = 0; i < n; i++)
		nsv_cq_peek(&r->reply, i, &c);
	if (n > 0)
		nsv_cq_advance(&r->reply, n);
	return n;
}

static void put_burst(struct nsv_raw *r, uint32_t n)
{
	const struct nsv_sqe nop = {.op = NSV_OP_NOP};

	while (n-- > 0)
		if (nsv_sq_put(&r->sq, &nop) != 0)
			die("a ring that had room has none");
	nsv_sq_publish(&r->sq);
	if (nsv_wait_must_ring(&r->down.head->wait, &r->rung))
		nsv_bell_send(r->fd);
}

double daemon_rate(void)
{
	struct nsv_geom want = {.n_sqe = N_RING, .n_slot = 1, .arena_len = 4096};
	uint32_t n_put = 0, n_got = 0, space;
	struct nsv_raw r;

	if (nsv_raw_open(&r, spinning.socket, &want) != 0)
		die("no session");
	uint64_t start = nsv_now_ns();
	while (n_got < N_ENTRY) {
		if (nsv_sq_space(&r.sq, &space) < 0)
			die("a ring index is impossible");
		if (n_put < N_ENTRY && space >= BURST) {
			put_burst(&r, BURST);
			n_put += BURST;
		}
		n_got += take_replies(&r);
	}
	double rate = N_ENTRY * 1e9 / (double)(nsv_now_ns() - start);
	nsv_raw_close(&r);
	return rate;
}

struct ring_memory {
	uint32_t tail __attribute__((aligned(64)));
	uint32_t head __attribute__((aligned(64)));
	struct nsv_sqe entries[N_RING] __attribute__((aligned(64)));
};

static void consume(int fd, void *arg)
{
	struct ring_memory *m = arg;
	struct nsv_sq_consumer sq = {.ring = m->entries,
		.shared_tail = &m->tail,
		.shared_head = &m->head,
		.mask = N_RING - 1};
	struct nsv_sqe sqe;
	uint32_t n;
	(void)fd;

	for (;;) {
		if (nsv_sq_ready(&sq, &n) < 0)
			_exit(1);
		for (; n > 0; n--) {
			nsv_sq_peek(&sq, &sqe);
			nsv_sq_advance(&sq);
		}
	}
}

double ring_rate(void)
{
	struct ring_memory *m =
		mmap(NULL, sizeof(*m), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	const struct nsv_sqe nop = {.op = NSV_OP_NOP};

	if (m == MAP_FAILED)
		die("no memory");
	struct nsv_sq_producer sq = {.ring = m->entries,
		.shared_tail = &m->tail,
		.shared_head = &m->head,
		.mask = N_RING - 1};
	pid_t pid = begin_other(AWAKE, consume, -1, m);
	uint64_t start = nsv_now_ns();
	for (uint32_t i = 0; i < N_ENTRY; i++) {
		while (nsv_sq_put(&sq, &nop) != 0)
			nsv_pause();
		nsv_sq_publish(&sq);
	}
	while (nsv_load_acq_u32(&m->head) != N_ENTRY)
		nsv_pause();
	double rate = N_ENTRY * 1e9 / (double)(nsv_now_ns() - start);
	end_other(pid);
	munmap(m, sizeof(*m));
	return rate;
}

/* ---- Prompts */

double seconds_of_prompt(uint32_t n_byte)
{
	struct nsv_client *client = nsv_ask_open(spinning.socket);
	struct nsv_request *request;
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	nsv_autofree char *text = malloc(n_byte);

	if (!client || !text)
		die("no session");
	for (uint32_t i = 0; i < n_byte; i++)
		text[i] = i % 6 == 5 ? ' ' : (char)('a' + random() % 26);
	uint64_t start = nsv_now_ns();
	if (nsv_client_tokenize(client, text, n_byte, 0, &request) < 0 ||
		nsv_request_collect(request, 20000, &chunk) < 0)
		die(nsv_client_error(client));
	double seconds = (double)(nsv_now_ns() - start) / 1e9;
	nsv_client_close(client);
	return seconds;
}
