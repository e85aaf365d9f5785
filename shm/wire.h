/* The socket between a client and the daemon (SOCK_SEQPACKET): hello, welcome with two descriptors,
 * and doorbells. What a packet says is checked by functions on (pointer, length). No state, any
 * thread; every descriptor received is close-on-exec and either returned or closed. */
#ifndef NSV_SHM_WIRE_H
#define NSV_SHM_WIRE_H

#include "shm/abi.h"
#include "shm/base.h"

/* A hello of this build that wants `want` (NULL: all defaults). */
struct nsv_hello nsv_hello_make(const struct nsv_geom *want);
/* Is it a hello that this build can serve? 0 or an enum nsv_code (NSV_E_HELLO, NSV_E_VERSION) and a
 * sentence. ret->want is as sent: complete and check it (shm/layout.h). */
int nsv_hello_check(const void *data, size_t len, struct nsv_hello *ret, struct nsv_err *err);
/* 0 or -errno (-EPIPE, -ECONNRESET: the daemon has closed; what it said before can be read). Blocks
 * as fd does. */
int nsv_hello_send(int fd, const struct nsv_hello *hello);

/* A welcome of this build; status NSV_E_OK. */
struct nsv_welcome nsv_welcome_make(
	uint64_t session_id, const struct nsv_geom *geom, uint64_t up_len, uint64_t down_len);
/* A refusal, with its sentence cut at the field's end. */
struct nsv_welcome nsv_refusal_make(enum nsv_code status, const char *text);
/* 0: a session; -EPROTO: malformed; a value above 0: refused with that enum nsv_code. The sentence
 * is the daemon's where it refused. */
int nsv_welcome_check(const void *data, size_t len, struct nsv_welcome *ret, struct nsv_err *err);
/* Sends a welcome with its two descriptors (borrowed), or a refusal (both -1). Does not block:
 * -EAGAIN when the peer does not read. */
int nsv_welcome_send(int fd, const struct nsv_welcome *welcome, int up_fd, int down_fd);
/* Receives and checks a welcome; blocks as fd does. As nsv_welcome_check, or -errno (-ECONNRESET:
 * the daemon closed, or another one rings in its place: say hello again; -EPROTO also for a
 * missing, surplus or cut off descriptor). *ret is also set on a refusal; the descriptors only on
 * 0, and are the caller's. */
int nsv_welcome_recv(
	int fd, struct nsv_welcome *ret, int *ret_up_fd, int *ret_down_fd, struct nsv_err *err);

/* Rings. 0 (also when the socket's queue is full: the peer has bells to wake by), or -errno: the
 * peer is gone. Never blocks, never raises SIGPIPE. */
int nsv_bell_send(int fd);
/* Takes all that has been sent. 0, -ECONNRESET: the peer has closed, or -errno. Never blocks. */
int nsv_bell_drain(int fd);

/* Has the kernel refuse descriptors to whoever sends them to this socket, or, if it listens, to one
 * that is made for a connection from now on. Whoever closes the last one of a file may have to wait
 * for that: for a socket's linger time. 0; -ENOPROTOOPT: before Linux 6.16; -errno. */
int nsv_wire_refuse_fds(int fd);
/* Has the kernel keep no more of what is sent to a peer that does not read than a welcome or a few
 * bells: it is the sender's memory. 0 or -errno. */
int nsv_wire_keep_few(int fd);

#endif
