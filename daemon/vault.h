/* Vaults: where the descriptors of sessions outlive the daemon.
 *
 * A vault is a pair of SEQPACKET sockets of which the service manager's store holds both ends,
 * under one short name. Each session lies in it as one message, never received, with its three
 * descriptors (socket, `up`, `down`) as SCM_RIGHTS: about 278 of them a pair, for microseconds
 * each, where the store itself would compare every descriptor with every other.
 *
 *     COMING --barrier--> READY --the first is full--> OPEN --full--> CLOSED
 *     CLOSED --all moved--> forgotten
 *
 * A session counts as safe only in a vault that a barrier has confirmed, so the next one comes
 * before it is needed. A successor looks at the messages without taking them (MSG_PEEK with
 * SO_PEEK_OFF): there is no instant at which a session is in no vault. A message cannot be taken
 * out of the middle: those of sessions that have ended are dead. A vault with many of them is
 * emptied by sending its live ones to another one and forgetting it; a crash in between leaves some
 * twice, which their session id tells.
 *
 * What lies in a vault keeps a reference: a session's end must shut its socket down, and free its
 * memory by a hole (nsv_vaults_remove does not). The io thread owns all of it. */
#ifndef NSV_DAEMON_VAULT_H
#define NSV_DAEMON_VAULT_H

#include "daemon/loop.h"
#include "daemon/notify.h"

enum { NSV_VAULT_SOCKET, NSV_VAULT_UP, NSV_VAULT_DOWN, NSV_VAULT_N_FD };

struct nsv_vault;

/* A session's place; lies in the session. Zeroed: it is in no vault. */
struct nsv_vault_place {
	struct nsv_vault *vault;
	struct nsv_vault_place *next, **prev; /* of the vault's live ones */
	uint64_t session_id;
	uint32_t rec;                 /* in the session table */
	int fds[NSV_VAULT_N_FD];      /* borrowed */
};

struct nsv_vaults {
	bool on; /* there is a service manager */
	struct nsv_loop *loop;
	/* A vault became ready: what waited for one can be tried again. */
	void (*ready)(struct nsv_vaults *v);
	struct nsv_vault *all;
	struct nsv_vault *open;     /* takes sessions; NULL: the next one will */
	struct nsv_vault *next;     /* coming or ready */
	struct nsv_vault *emptying; /* its live ones are on their way to others */
	uint32_t last_number;
};

/* A session found by nsv_vaults_adopt. The descriptors are the callee's if it returns its place,
 * into which it copied *found. A place that has been returned before: it is there twice, and these
 * descriptors are closed. NULL: nobody wants it, and its socket is shut down too. */
typedef struct nsv_vault_place *(*nsv_vault_found_fn)(
	void *user, const struct nsv_vault_place *found);

/* on: without it the rest does nothing. */
void nsv_vaults_init(struct nsv_vaults *v, struct nsv_loop *loop, bool on,
	void (*ready)(struct nsv_vaults *v));
/* Takes the vaults among what was passed, and calls back for every session in them. 0 or -errno. */
int nsv_vaults_adopt(struct nsv_vaults *v, struct nsv_passed *passed, nsv_vault_found_fn found,
	void *user, struct nsv_err *err);
/* Has the next vault made, if none is there. 0 or -errno. */
int nsv_vaults_prepare(struct nsv_vaults *v);
/* The loop is gone: frees everything here, and is off. The store keeps what it has. */
void nsv_vaults_deinit(struct nsv_vaults *v);

/* Puts a session away: session_id, rec and fds are set. 0: it is safe; 1: no vault is ready yet,
 * `ready` will say so; -errno: it cannot be, and is in none. Without a manager: 0. */
int nsv_vaults_put(struct nsv_vaults *v, struct nsv_vault_place *place);
/* The session has ended. In no vault: fine. */
void nsv_vaults_remove(struct nsv_vaults *v, struct nsv_vault_place *place);
/* Messages of sessions that have ended. */
uint32_t nsv_vaults_n_dead(const struct nsv_vaults *v);
/* Begins to empty a vault if one has too many dead messages: more than half as many as live ones
 * and 16, or any if `all`. */
void nsv_vaults_tend(struct nsv_vaults *v, bool all);

#endif
