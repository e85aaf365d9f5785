/* Many short, hostile lives against one daemon, and one honest stream beside them.
 *
 *     chaos LIVES [SEED]
 *
 * A life is a child process that connects and does what a client may, must not or cannot do: valid
 * requests, garbage entries, indices out of nowhere, entries rewritten while they are read, holes
 * in its memory, floods of bells, hellos that never come. Some end well, most by SIGKILL, some are
 * stopped by SIGSTOP first. The honest stream must stay bit-equal to its solitary run all the time,
 * and so must what honest lives read. In the end the daemon holds what it held at the beginning:
 * blocks, requests, sessions and descriptors exactly, mappings exactly but for its threads' heaps,
 * memory within MEMORY_SLACK_KIB of what it was after the first tenth of the lives.
 *
 * The counts come last; the exit status is 0 only when nothing was lost. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "shm/clock.h"
#include "tests/tools/ask.h"
#include "tests/tools/daemon.h"
#include "tests/tools/proc.h"
#include "tests/tools/raw.h"
#include "tests/tools/rnd.h"
#include "tests/tools/tiny.h"
#include "tests/tools/wait.h"

#define N_AT_ONCE 8
#define N_TOKEN 96	   /* of the honest stream */
#define LIFE_NS 250000000u /* then it is killed */
#define END_NS 30000000000u
#define MEMORY_SLACK_KIB 16384
#define WRONG 7 /* exit status of a life that read something else than it should */

static const char *const prompts[] = {"the first prompt", "a second one", "and yet another"};

enum { N_PROMPT = NSV_ARRAY_LEN(prompts) };

/* What the driver, the honest stream and the lives share. */
struct shared {
	int32_t tokens[N_PROMPT][N_TOKEN]; /* the solitary runs */
	uint32_t n_stream, n_bad;	   /* of the honest stream */
	uint64_t longest_ns;
	int stop;
};

static struct nsv_test_daemon served;
static struct shared *shared;

/* ---- Chance: a stream a life */

static uint64_t rng;

static uint64_t any(void)
{
	return t_next(&rng);
}

static uint32_t below(uint32_t n)
{
	return t_next_below(&rng, n);
}

/* A number as an attacker would choose it. */
static uint64_t odd_number(void)
{
	static const uint64_t edges[] = {0, 1, 7, 8, 63, 64, 4095, 4096, 0x7fffffff, 0x80000000u,
		0xfffffff8u, 0xffffffffu, 1ull << 32, INT64_MAX, UINT64_MAX};

	return below(3) ? edges[below(NSV_ARRAY_LEN(edges))] + below(3) - 1 : any() >> below(64);
}

/* ---- Raw lives */

struct life {
	struct nsv_raw r;
	uint64_t next_id;
	int scribble; /* atomic: the second thread goes on */
};

static struct nsv_params some_params(void)
{
	struct nsv_params p = {.len = sizeof(p),
		.top_p = 1,
		.typical_p = 1,
		.repetition_penalty = 1,
		.max_tokens = 1 + below(40),
		.n_branch = below(3) ? 1 : below(NSV_MAX_BRANCH + 3),
		.priority = (int32_t)below(220) - 110,
		.flags = below(4) | (below(3) ? 0 : below(4) << 2)};

	if (p.flags & (NSV_PARAM_LOGPROBS | NSV_PARAM_PROMPT_LOGPROBS))
		p.n_logprob = below(8);

	if (below(4) == 0)
		((unsigned char *)&p)[below(sizeof(p))] = (unsigned char)any();
	return p;
}

static struct nsv_sqe valid_entry(struct life *l)
{
	static const uint8_t ops[] = {NSV_OP_SUBMIT, NSV_OP_SUBMIT, NSV_OP_SUBMIT, NSV_OP_CANCEL,
		NSV_OP_FORK, NSV_OP_FORK, NSV_OP_NOP, NSV_OP_TOKENIZE, NSV_OP_DETOKENIZE,
		NSV_OP_STATUS};
	const struct nsv_geom *g = &l->r.welcome.geom;
	struct nsv_params p = some_params();
	uint32_t len = 4 * (1 + below(below(20) ? 30 : (g->arena_len - 256) / 4));
	struct nsv_sqe sqe = {.op = ops[below(NSV_ARRAY_LEN(ops))],
		.slot = (uint16_t)below(g->n_slot),
		.request_id = ++l->next_id,
		.params_off = (len + 7) & ~7u,
		.params_len = sizeof(p),
		.prompt_len = len,
		.target_id = l->next_id - below(4)};

	if (sqe.op == NSV_OP_DETOKENIZE || (sqe.op == NSV_OP_SUBMIT && below(2))) {
		sqe.flags = NSV_SQE_IDS;
		for (uint32_t i = 0; i < len / 4; i++)
			((int32_t *)(void *)l->r.up.arena)[i] = (int32_t)below(200);
	} else {
		memset(l->r.up.arena, 'a' + (int)below(26), len);
	}
	memcpy(l->r.up.arena + sqe.params_off, &p, sizeof(p));
	if (sqe.op == NSV_OP_SUBMIT || sqe.op == NSV_OP_FORK)
		sqe.branch = below(4);
	if (sqe.op == NSV_OP_FORK && below(8))
		sqe.prompt_len = sqe.params_off = sqe.params_len = 0;
	if (sqe.op == NSV_OP_SUBMIT && p.n_branch > 1)
		l->next_id += p.n_branch - 1; /* its answers have these ids */
	return sqe;
}

static void put(struct life *l, const struct nsv_sqe *sqe)
{
	if (nsv_sq_put(&l->r.sq, sqe) == 0)
		nsv_sq_publish(&l->r.sq);
	if (nsv_wait_must_ring(&l->r.down.head->wait, &l->r.rung))
		nsv_bell_send(l->r.fd);
}

static void do_valid(struct life *l)
{
	struct nsv_sqe sqe = valid_entry(l);

	put(l, &sqe);
}

static void do_nops(struct life *l)
{
	struct nsv_sqe nop = {.op = NSV_OP_NOP, .target_id = any()};

	for (uint32_t n = below(300); n > 0; n--)
		put(l, &nop);
}

static void do_garbage(struct life *l)
{
	struct nsv_sqe sqe = valid_entry(l);

	for (uint32_t n = 1 + below(3); n > 0; n--) {
		uint32_t word = below(sizeof(sqe) / sizeof(uint32_t));
		uint32_t v = (uint32_t)odd_number();
		memcpy((char *)&sqe + word * sizeof(v), &v, sizeof(v));
	}
	put(l, &sqe);
}

/* An entry and what it refers to change while the daemon reads them. */
static void do_torn(struct life *l)
{
	struct nsv_sqe sqe = valid_entry(l);
	struct nsv_sqe *at = &l->r.up.sqes[l->r.sq.tail & l->r.sq.mask];

	put(l, &sqe);
	for (int i = 0; i < 200; i++) {
		((volatile uint32_t *)at)[below(16)] = (uint32_t)odd_number();
		((volatile unsigned char *)l->r.up.arena)[below(256)] = (unsigned char)any();
	}
}

static void do_index(struct life *l)
{
	uint32_t *words[] = {&l->r.up.head->sq_tail, &l->r.up.head->reply_head,
		&l->r.up.head->event_head, &l->r.up.head->wait};
	uint32_t *w = words[below(NSV_ARRAY_LEN(words))];

	nsv_store_rel_u32(w, below(2) ? (uint32_t)odd_number() : *w + below(5));
	nsv_bell_send(l->r.fd);
}

static void do_cursors(struct life *l)
{
	struct nsv_up_slot *s = &l->r.up.slots[below(l->r.welcome.geom.n_slot)];
	uint64_t *words[] = {&s->text_read, &s->token_read, &s->lp_read, &s->ack_id};

	nsv_store_rel_u64(words[below(4)], below(2) ? odd_number() : l->next_id - below(3));
	nsv_bell_send(l->r.fd);
}

static void do_hole(struct life *l)
{
	off_t at = (off_t)(below((uint32_t)(l->r.up_region.len / NSV_PAGE)) * NSV_PAGE);

	fallocate(l->r.up_region.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, NSV_PAGE);
	nsv_bell_send(l->r.fd);
}

static void do_bells(struct life *l)
{
	static const char packet[4096];

	for (uint32_t n = below(200); n > 0; n--)
		if (send(l->r.fd, packet, 1 + below(below(4) ? 8 : sizeof(packet)),
			    MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
			return;
}

/* Descriptors that nobody asked for. */
static void do_descriptors(struct life *l)
{
	struct nsv_welcome w = l->r.welcome;

	nsv_welcome_send(l->r.fd, &w, l->r.up_region.fd, l->r.fd);
}

static void do_half_close(struct life *l)
{
	static const int how[] = {SHUT_RD, SHUT_WR, SHUT_RDWR};

	if (below(10) == 0)
		shutdown(l->r.fd, how[below(3)]);
}

/* As an honest client: takes completions, reads logs, acknowledges. */
static void do_read(struct life *l)
{
	const struct nsv_geom *g = &l->r.welcome.geom;
	uint32_t n;

	if (nsv_cq_ready(&l->r.reply, &n) == 0)
		nsv_cq_advance(&l->r.reply, n);
	if (nsv_cq_ready(&l->r.event, &n) == 0)
		nsv_cq_advance(&l->r.event, n);
	for (uint32_t i = 0; i < g->n_slot; i++) {
		const struct nsv_down_slot *rec = &l->r.down.slots[i];
		struct nsv_up_slot *s = &l->r.up.slots[i];
		bool ring = nsv_cursor_move(&s->text_read, nsv_load_acq_u64(&rec->text_end), rec);
		ring |= nsv_cursor_move(&s->token_read, nsv_load_acq_u64(&rec->token_end), rec);
		ring |= nsv_cursor_move(&s->lp_read, nsv_load_acq_u64(&rec->lp_end), rec);
		if (nsv_load_acq_u32(&rec->state) == NSV_SLOT_DONE)
			nsv_store_rel_u64(&s->ack_id, nsv_load_acq_u64(&rec->request_id));
		if (ring)
			nsv_bell_send(l->r.fd);
	}
}

static void do_nap(struct life *l)
{
	(void)l;
	usleep(below(5000));
}

static void *scribble(void *arg)
{
	struct life *l = arg;
	uint32_t x = 1;

	while (__atomic_load_n(&l->scribble, __ATOMIC_RELAXED)) {
		x = x * 1664525u + 1013904223u;
		size_t at = 64 + (size_t)(x >> 8) % (l->r.up_region.len / 4 - 64) * 4;
		*(volatile uint32_t *)((char *)l->r.up_region.map + (at & ~(size_t)3)) =
			x >> (x & 31);
	}
	return NULL;
}

typedef void (*act_fn)(struct life *l);

static void act(struct life *l)
{
	static const act_fn acts[] = {do_valid, do_valid, do_valid, do_read, do_read, do_nops,
		do_garbage, do_torn, do_index, do_cursors, do_hole, do_bells, do_descriptors,
		do_half_close, do_nap};
	static const act_fn honest[] = {do_valid, do_read, do_read, do_nap};
	bool is_honest = rng & 1;

	for (uint32_t n = below(40); n > 0; n--) {
		if (is_honest && below(8))
			honest[below(NSV_ARRAY_LEN(honest))](l);
		else
			acts[below(NSV_ARRAY_LEN(acts))](l);
	}
}

static void raw_life(void)
{
	struct nsv_geom want = {.n_sqe = 1u << below(8),
		.n_slot = 1 + below(8),
		.arena_len = 4096u << below(6),
		.text_len = 1024u << below(4),
		.n_token = 64u << below(4),
		.n_lp = below(2) ? 128 : 0};
	struct life l = {.next_id = 0};
	pthread_t thread;
	bool scribbles;

	if (nsv_raw_open(&l.r, served.socket, &want) != 0)
		return;
	l.scribble = below(8) == 0;
	scribbles = l.scribble && pthread_create(&thread, NULL, scribble, &l) == 0;
	act(&l);
	if (below(4) == 0)
		raise(SIGSTOP);
	if (below(2))
		kill(getpid(), SIGKILL); /* in the middle of whatever the second thread does */
	__atomic_store_n(&l.scribble, 0, __ATOMIC_RELAXED);
	if (scribbles)
		pthread_join(thread, NULL);
	nsv_raw_close(&l.r);
}

/* ---- Lives that end before they begin */

static void silent_life(void)
{
	int fd = nsv_raw_connect(served.socket);

	if (fd >= 0 && below(2))
		usleep(below(100000));
}

static void garbage_hello_life(void)
{
	struct nsv_hello h = nsv_hello_make(NULL);
	int fd = nsv_raw_connect(served.socket);
	uint32_t v = (uint32_t)odd_number();

	memcpy((char *)&h + 4 * below(sizeof(h) / 4), &v, sizeof(v));
	for (uint32_t n = 1 + below(3); fd >= 0 && n > 0; n--)
		if (send(fd, &h, below(4) ? sizeof(h) : below(sizeof(h)), MSG_NOSIGNAL) < 0)
			return;
	usleep(below(2000));
}

/* The welcome, with its descriptors, is never read. */
static void unread_welcome_life(void)
{
	struct nsv_hello h =
		nsv_hello_make(&(struct nsv_geom){.arena_len = 4096, .text_len = 1024});
	int fd = nsv_raw_connect(served.socket);

	if (fd < 0 || nsv_hello_send(fd, &h) < 0)
		return;
	if (below(2))
		raise(SIGSTOP);
	usleep(below(20000));
}

/* ---- Honest lives, through the library */

static int check_tokens(uint32_t which, uint32_t at, const struct nsv_client_chunk *c)
{
	if (at + c->n_token > N_TOKEN)
		return WRONG;
	return memcmp(c->tokens, &shared->tokens[which][at], c->n_token * sizeof(int32_t)) ? WRONG
											   : 0;
}

static struct nsv_client_params stream_params(void)
{
	struct nsv_client_params p;

	nsv_client_params_init(&p);
	p.flags = NSV_CLIENT_IGNORE_END | NSV_CLIENT_SEED;
	p.seed = 4711;
	p.temperature = 0.8f;
	p.max_tokens = N_TOKEN;
	return p;
}

/* Reads some of a stream, then cancels it, frees it or reads it to its end. */
static int read_some(struct nsv_request *req, uint32_t which)
{
	struct nsv_client_chunk c = {.size = sizeof(c)};
	uint32_t n = 0, enough = below(2) ? N_TOKEN : below(N_TOKEN);

	while (nsv_request_next(req, 5000, &c) > 0) {
		if (check_tokens(which, n, &c))
			return WRONG;
		n += (uint32_t)c.n_token;
		if (n > enough) {
			nsv_request_cancel(req);
			break;
		}
	}
	return 0;
}

static int library_life(void)
{
	struct nsv_client_params p = stream_params();
	struct nsv_client *client;
	struct nsv_request *req;
	int ret = 0;

	if (nsv_client_open(served.socket, NULL, NULL, 0, &client) < 0)
		return 0;
	for (uint32_t n = 1 + below(3); n > 0 && ret == 0; n--) {
		uint32_t which = below(N_PROMPT);
		if (nsv_client_submit_text(
			    client, prompts[which], strlen(prompts[which]), &p, &req) < 0)
			break;
		ret = read_some(req, which);
		if (below(2))
			nsv_request_free(req);
	}
	if (below(2))
		nsv_client_close(client);
	return ret;
}

static int live(uint64_t seed)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	rng = seed;
	switch (below(10)) {
	case 0:
		silent_life();
		return 0;
	case 1:
		garbage_hello_life();
		return 0;
	case 2:
		unread_welcome_life();
		return 0;
	case 3:
	case 4:
		return library_life();
	default:
		raw_life();
		return 0;
	}
}

/* ---- The honest stream */

static bool ask_one(struct nsv_client *client, uint32_t which, struct nsv_answer *a)
{
	struct nsv_client_params p = stream_params();

	nsv_ask_text(client, prompts[which], &p, a);
	return a->ret == 0 && a->result.finish == NSV_CLIENT_FINISH_LENGTH && a->n_token == N_TOKEN;
}

static void stream_on(void)
{
	struct nsv_client *client = nsv_ask_open(served.socket);
	struct nsv_answer *a = malloc(sizeof(*a));

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (client && !__atomic_load_n(&shared->stop, __ATOMIC_RELAXED)) {
		uint32_t which = shared->n_stream % N_PROMPT;
		uint64_t start = nsv_now_ns();
		bool good = ask_one(client, which, a) && memcmp(a->tokens, shared->tokens[which],
								 sizeof(shared->tokens[0])) == 0;
		if (!good)
			fprintf(stderr,
				"chaos: a stream is not what it was alone: %zu tokens, %s\n",
				a->n_token, a->reason);
		shared->n_bad += !good;
		shared->n_stream++;
		shared->longest_ns = nsv_max_u64(shared->longest_ns, nsv_now_ns() - start);
	}
	nsv_client_close(client);
	free(a);
	_exit(client ? 0 : 1);
}

static bool run_alone(struct nsv_client *client)
{
	struct nsv_answer *a = malloc(sizeof(*a));
	bool good = a != NULL;

	for (uint32_t i = 0; good && i < N_PROMPT; i++) {
		good = ask_one(client, i, a);
		memcpy(shared->tokens[i], a->tokens, sizeof(shared->tokens[i]));
	}
	free(a);
	return good;
}

/* ---- What the daemon holds */

struct holdings {
	long n_fd, n_map, memory_kib;
};

static long count_dir(const char *what)
{
	char cmd[128];
	long n = -1;

	snprintf(cmd, sizeof(cmd), what, (int)served.pid);
	FILE *f = popen(cmd, "re");
	if (f && fscanf(f, "%ld", &n) != 1)
		n = -1;
	if (f)
		pclose(f);
	return n;
}

static struct holdings look(void)
{
	return (struct holdings){.n_fd = count_dir("ls /proc/%d/fd | wc -l"),
		.n_map = count_dir("grep -c memfd:nsv- /proc/%d/maps"),
		.memory_kib = count_dir(
			"awk '/^Rss(Anon|Shmem)/ {n += $2} END {print n}' /proc/%d/status")};
}

/* Waits until the daemon has let go of all but the driver's own session. */
static bool wait_quiet(struct nsv_client *client, long long n_block)
{
	return nsv_ask_status_until(client, "sessions", 1) &&
	       nsv_ask_status_until(client, "requests.running", 0) &&
	       nsv_ask_status_until(client, "requests.queued", 0) &&
	       nsv_ask_status_until(client, "requests.paused", 0) &&
	       nsv_ask_status_until(client, "requests.ended", 0) &&
	       nsv_ask_status_until(client, "blocks.free", n_block);
}

static bool check(bool good, const char *what, long long is, long long was)
{
	if (!good)
		fprintf(stderr, "chaos: %s: %lld, was %lld\n", what, is, was);
	return good;
}

/* ---- The driver */

struct place { /* of a life that is being lived */
	pid_t pid;
	uint64_t until_ns;
	bool freed; /* it was continued after a stop */
};

struct tally {
	uint32_t n_life, n_killed, n_wrong, n_stopped;
};

static void begin_life(struct place *p, uint64_t seed)
{
	p->pid = nsv_proc_fork();
	if (p->pid == 0)
		_exit(live(seed));
	p->until_ns = nsv_now_ns() + below(4) * (LIFE_NS / 4) + below(LIFE_NS);
}

static void bury(struct place *p, int status, struct tally *t)
{
	t->n_life++;
	t->n_killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
	if ((WIFEXITED(status) && WEXITSTATUS(status) != 0) ||
		(WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL &&
			WTERMSIG(status) != SIGBUS)) {
		fprintf(stderr, "chaos: a life ended with status %#x\n", status);
		t->n_wrong++;
	}
	p->pid = 0;
}

/* Ends lives that have gone on for too long; some that were stopped go on first. */
static void attend(struct place *p, struct tally *t)
{
	int status;

	if (!p->pid)
		return;
	if (waitpid(p->pid, &status, WNOHANG | WUNTRACED) == p->pid) {
		if (!WIFSTOPPED(status)) {
			bury(p, status, t);
			return;
		}
		t->n_stopped++;
	}
	if (nsv_now_ns() < p->until_ns)
		return;
	if (below(4) == 0 && !p->freed) {
		kill(p->pid, SIGCONT);
		p->freed = true;
		p->until_ns = nsv_now_ns() + LIFE_NS / 4;
		return;
	}
	kill(p->pid, SIGKILL);
	waitpid(p->pid, &status, 0);
	bury(p, status, t);
}

static bool is_alive(pid_t pid)
{
	return waitpid(pid, NULL, WNOHANG) == 0;
}

static void live_all(uint32_t n, uint64_t seed, struct tally *t)
{
	struct place places[N_AT_ONCE] = {0};
	uint32_t begun = 0, end = t->n_life + n;

	while (t->n_life < end && is_alive(served.pid)) {
		for (int i = 0; i < N_AT_ONCE; i++) {
			if (!places[i].pid && begun < n) {
				places[i] = (struct place){0};
				begin_life(&places[i], seed + t->n_life + begun++);
			}
			attend(&places[i], t);
		}
		usleep(500);
	}
	for (int i = 0; i < N_AT_ONCE; i++)
		if (places[i].pid)
			kill(places[i].pid, SIGKILL);
}

/* What was held before and after, with nobody else connected. */
static bool compare(struct nsv_client *client, long long n_block, const struct holdings *was)
{
	bool quiet = wait_quiet(client, n_block);
	struct holdings is = look();
	bool good = check(quiet, "free blocks", nsv_ask_status(client, "blocks.free"), n_block);

	good &= check(nsv_ask_status(client, "sessions") == 1, "sessions",
		nsv_ask_status(client, "sessions"), 1);
	good &= check(is.n_fd == was->n_fd, "descriptors", is.n_fd, was->n_fd);
	good &= check(is.n_map == was->n_map, "mapped regions", is.n_map, was->n_map);
	good &= check(is.memory_kib <= was->memory_kib + MEMORY_SLACK_KIB, "KiB of memory",
		is.memory_kib, was->memory_kib);
	kill(served.pid, SIGUSR1);
	good &= check(NSV_WAIT_FOR(nsv_test_daemon_logged(&served, "all accounted for")),
		"a sound audit", 0, 1);
	printf("held: %ld descriptors, %ld regions, %ld KiB (%ld KiB after a tenth of the lives)\n",
		is.n_fd, is.n_map, is.memory_kib, was->memory_kib);
	return good;
}

static bool run(uint32_t n_life, uint64_t seed, struct tally *t)
{
	struct nsv_client *client = nsv_ask_open(served.socket);
	long long n_block = client ? nsv_ask_status(client, "blocks.total") : -1;
	int status = -1;

	if (!client || !run_alone(client) || !wait_quiet(client, n_block))
		return false;
	struct holdings was = look();
	pid_t honest = nsv_proc_fork();
	if (honest == 0)
		stream_on();
	live_all(n_life / 10, seed, t);
	was.memory_kib = look().memory_kib;
	live_all(n_life - n_life / 10, seed, t);
	shared->stop = 1;
	while (waitpid(honest, &status, 0) < 0 && errno == EINTR)
		;
	bool good = is_alive(served.pid) && compare(client, n_block, &was);
	nsv_client_close(client);
	return good && status == 0;
}

static int start(char *model, size_t len)
{
	static const char *const extra[] = {"--kv-blocks", "64", "--threads", "1", NULL};

	setenv("ASAN_OPTIONS", "quarantine_size_mb=4", 0);
	nsv_tiny_model(model, len);
	return nsv_test_daemon_start(&served, model, extra);
}

static void keep_log(void)
{
	char cmd[160];

	snprintf(cmd, sizeof(cmd), "tail -n 40 %s >&2", served.log);
	if (system(cmd) != 0)
		fprintf(stderr, "chaos: the daemon's log cannot be read\n");
}

int main(int argc, char **argv)
{
	uint32_t n_life = argc > 1 ? (uint32_t)atoi(argv[1]) : 1000;
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : nsv_now_ns();
	struct tally t = {0};
	char model[64];

	printf("chaos: %u lives, seed %llu\n", n_life, (unsigned long long)seed);
	fflush(stdout);
	rng = seed;
	shared = mmap(
		NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED || start(model, sizeof(model)) < 0)
		return EXIT_FAILURE;
	uint64_t begin = nsv_now_ns();
	bool good = run(n_life, seed, &t);
	uint64_t took = nsv_now_ns() - begin;
	if (!good)
		keep_log();
	bool stopped = nsv_test_daemon_stop(&served, SIGTERM) == 0;
	unlink(model);
	if (!stopped)
		fprintf(stderr, "chaos: the daemon did not end well\n");
	good &= stopped && t.n_life == n_life && t.n_wrong == 0 && shared->n_bad == 0 &&
		shared->n_stream;
	printf("%u lives in %.0f s: %u killed, %u stopped, %u wrong; %u honest streams of %d "
	       "tokens, "
	       "%u not bit-equal, the longest %.0f ms\n%s\n",
		t.n_life, (double)took / 1e9, t.n_killed, t.n_stopped, t.n_wrong, shared->n_stream,
		N_TOKEN, shared->n_bad, (double)shared->longest_ns / 1e6,
		good ? "nothing lost" : "LOST");
	return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
