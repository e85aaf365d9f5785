/* The io thread: the listening socket, sessions, signals and timers, and what the engine and
 * its workers answer. Everything here belongs to that thread. */
#ifndef NSV_DAEMON_SERVER_H
#define NSV_DAEMON_SERVER_H

#include "daemon/config.h"
#include "daemon/engine.h"
#include "daemon/listen.h"
#include "daemon/log.h"
#include "daemon/loop.h"
#include "daemon/memory.h"
#include "daemon/seqs.h"
#include "daemon/user.h"
#include "daemon/vault.h"
#include "daemon/worker.h"

struct nsv_session;

#define NSV_SERVER_DROP_LIMITS 64

struct nsv_server {
	/* Borrowed. */
	const struct nsv_config *config;
	const struct nsv_tok *tok;
	struct nsv_engine *engine;

	struct nsv_loop *loop;
	struct nsv_mailbox inbox; /* from the engine and the workers */
	struct nsv_worker prompt_worker, memory_worker;
	struct nsv_users users;
	struct nsv_memory memory;
	struct nsv_vaults vaults;
	struct nsv_source listen_src, signal_src, inbox_src, accept_timer, hello_timer, tend_timer,
		drops_timer;
	int listen_fd, signal_fd;
	struct nsv_listen_file listen_file; /* the config's socket */
	bool accept_failed; /* it was said, and none has come since */
	bool hello_timer_armed, tend_timer_armed, drops_timer_armed;

	struct nsv_session *sessions; /* all, newest first */
	struct nsv_session *hellos, **hellos_end; /* those not open yet, oldest first */
	struct nsv_session *ready;    /* to be visited in this turn */
	struct nsv_session *hot;      /* looked at without a doorbell */
	struct nsv_user *busy, **busy_end; /* whose sessions have something put off */
	uint32_t n_session, n_hello;
	uint64_t n_turn;    /* of visits */
	uint32_t n_waiting; /* hellos that wait for what sessions had that end */
	bool some_ended;    /* in this turn: those hellos are asked once, after it */
	uint32_t n_request;           /* in the engine */
	uint64_t last_session_id, start_ns, hot_until_ns, reclaimed_ns;
	uint64_t n_refused, n_dropped;
	struct nsv_log_limit drops_said[NSV_SERVER_DROP_LIMITS]; /* by user; few share one */
	bool stopping;
	/* No request begins, and the end comes after the last. Of this daemon alone: one that comes
	 * after a crash serves. */
	bool draining;
	uint64_t drain_ns; /* since when */
	int exit_code;
};

/* Opens the socket (config's path, else the one that the service manager passed) and everything
 * that waits; the engine is attached afterwards, since it answers to the inbox. */
int nsv_server_init(struct nsv_server *s, const struct nsv_config *config,
	struct nsv_passed *passed, struct nsv_err *err);
int nsv_server_attach(struct nsv_server *s, struct nsv_engine *engine, const struct nsv_tok *tok);
/* Takes over what another daemon left: the sessions in the vaults that were passed, with their
 * requests. Before the engine starts. */
int nsv_server_adopt(struct nsv_server *s, struct nsv_passed *passed, struct nsv_err *err);
/* Serves until a signal asks it to stop, or it is drained; the process's exit code. */
int nsv_server_run(struct nsv_server *s);
/* The engine has been stopped. */
void nsv_server_deinit(struct nsv_server *s);

/* A session has ended: its place in a vault is tidied up within a second. */
void nsv_server_tend_vaults(struct nsv_server *s);

/* A session was dropped whose name the log's limit kept back: how many were is said a second later,
 * or at the end. */
void nsv_server_tell_drops(struct nsv_server *s);

/* SIGTERM, SIGINT and SIGUSR1 are blocked for the whole process, threads to come included. */
int nsv_server_block_signals(void);

#endif
