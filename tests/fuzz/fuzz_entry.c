/* Submission entries with the arena that they point into, through the whole daemon but its own
 * loop: a session over a socket pair, the real entry code, worker and engine over a tiny model.
 * This thread is the io thread. After each input the session is closed, and all that it held must
 * be back.
 *
 *     input:  turns (1 byte) | entries of 64 bytes, up to 4 | the arena's first bytes
 *
 * Operation, slot, ids and offsets are brought near to what is valid where the entry's first bits
 * say so, or hardly an input would get past the first check. */
#include <string.h>
#include <sys/socket.h>

#include "daemon/log.h"
#include "daemon/session.h"
#include "shm/wire.h"
#include "tests/tools/gguf_write.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

#define N_SQE 4
#define ARENA_LEN 16384

static const struct nsv_geom want = {.n_sqe = N_SQE,
	.n_slot = 3,
	.arena_len = ARENA_LEN,
	.text_len = 2048,
	.n_token = 64,
	.n_lp = 128};

static struct nsv_server server;

static void must(bool good)
{
	if (!good)
		abort();
}

/* ---- The daemon */

static struct nsv_gguf *make_model(void)
{
	static const struct nsv_tiny_llama shape = {.n_layer = 1,
		.width = 32,
		.n_ffn = 32,
		.n_head = 2,
		.n_kv_head = 1,
		.head_dim = 16,
		.n_context = 128,
		.dtype = NSV_Q8_0};
	struct nsv_gguf *g = NULL;
	struct nsv_err err;
	size_t len;
	uint8_t *file = nsv_gguf_tiny_llama(&shape, 1, &len); /* stays: the model refers to it */

	must(nsv_gguf_parse(file, len, &g, &err) == 0);
	return g;
}

static void start(void)
{
	static struct nsv_config config;
	static struct nsv_passed passed; /* nothing: there is no service manager */
	static char socket_path[64];
	char *argv[] = {"fuzz", "--model", "none", "--socket", socket_path, "--kv-blocks", "32",
		"--threads", "1", "--max-requests", "4", NULL};
	static struct nsv_gguf *g; /* all for as long as the process lives */
	static struct nsv_engine *engine;
	static struct nsv_tok *tok;
	struct nsv_err err;

	g = make_model();
	nsv_log_setup(NSV_LOG_ERROR, false);
	snprintf(socket_path, sizeof(socket_path), "/tmp/nanoserve-fuzz-%d", (int)getpid());
	must(nsv_config_init(&config, NSV_ARRAY_LEN(argv) - 1, argv, &err) == 0);
	must(nsv_server_init(&server, &config, &passed, &err) == 0);
	unlink(socket_path);
	struct nsv_engine_config ec = {.threads = 1,
		.kv_blocks = config.kv_blocks,
		.batch_tokens = 64,
		.max_requests = config.max_requests};
	must(nsv_tok_new(g, &tok, &err) == 0);
	must(nsv_engine_new(&engine, &ec, g, &server.inbox, &err) == 0);
	must(nsv_engine_set_tok(engine, tok, &err) == 0);
	must(nsv_server_attach(&server, engine, tok) == 0 && nsv_engine_start(engine) == 0);
}

/* As the server's own loop has it. */
static void turn(bool wait)
{
	must(nsv_loop_turn(server.loop, wait && !server.busy) >= 0);
	nsv_session_do_chores(&server);
}

/* ---- A client */

static struct nsv_session *open_session(int *ret_fd)
{
	struct nsv_hello hello = nsv_hello_make(&want);
	int fds[2];

	must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0);
	nsv_session_new(&server, fds[0]);
	must(nsv_hello_send(fds[1], &hello) == 0);
	while (server.sessions && server.sessions->state == NSV_SESSION_HELLO)
		turn(true);
	must(server.sessions && server.sessions->state == NSV_SESSION_OPEN);
	*ret_fd = fds[1];
	return server.sessions;
}

static void bring_near(struct nsv_sqe *e, uint64_t id)
{
	unsigned int which = e->op >> 3;

	e->op &= 7;
	if (which & 1) {
		memset(e->reserved1, 0, sizeof(e->reserved1));
		e->reserved0 = 0;
		e->slot %= 3;
		e->branch %= 4;
		e->flags &= NSV_SQE_FLAGS;
		e->request_id = id;
		e->target_id %= 16;
		if (e->op == NSV_OP_DRAIN && e->target_id < 8)
			e->target_id = e->target_id < 4 ? NSV_DRAIN_ON : NSV_DRAIN_OFF;
	}
	if (which & 2) {
		e->prompt_off = e->prompt_off % ARENA_LEN & ~7u;
		e->prompt_len %= ARENA_LEN - e->prompt_off + 1;
		e->params_off = e->params_off % ARENA_LEN & ~7u;
		e->params_len %= ARENA_LEN - e->params_off + 1;
	}
	if (which & 4)
		e->params_off = e->params_len = 0;
}

static void write_up(struct nsv_session *se, const uint8_t *data, size_t len)
{
	struct nsv_sqe e;
	uint32_t n = 0;

	for (; n < N_SQE && len >= sizeof(e); n++, data += sizeof(e), len -= sizeof(e)) {
		memcpy(&e, data, sizeof(e));
		bring_near(&e, 4 * n + 1); /* an entry may take the ids of several answers */
		se->ch.up.sqes[n] = e;
	}
	memcpy(se->ch.up.arena, data, nsv_min(len, ARENA_LEN));
	nsv_store_rel_u32(&se->ch.up.head->sq_tail, n);
}

/* What the server's own loop does, as often as the input says; a cursor moves now and then. */
static void serve(struct nsv_session *se, unsigned int n_turn)
{
	for (unsigned int i = 0; i <= n_turn && se->state == NSV_SESSION_OPEN; i++) {
		nsv_session_visit(se);
		turn(false);
		for (uint32_t s = 0; i % 2 && s < want.n_slot; s++) {
			struct nsv_up_slot *c = &se->ch.up.slots[s];
			nsv_store_rel_u64(
				&c->text_read, nsv_load_acq_u64(&se->ch.down.slots[s].text_end));
			nsv_store_rel_u64(
				&c->token_read, nsv_load_acq_u64(&se->ch.down.slots[s].token_end));
			nsv_store_rel_u64(
				&c->lp_read, nsv_load_acq_u64(&se->ch.down.slots[s].lp_end));
		}
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	int fd;

	if (!server.loop)
		start();
	if (len == 0)
		return 0;
	struct nsv_session *se = open_session(&fd);
	write_up(se, data + 1, len - 1);
	serve(se, data[0] % 16);
	close(fd);
	while (server.n_session > 0)
		turn(true);
	server.draining = false; /* it may have been asked to */
	must(server.n_request == 0 && server.n_hello == 0 && server.users.first == NULL);
	return 0;
}
