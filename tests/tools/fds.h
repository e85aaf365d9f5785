/* A packet with descriptors, as it is: for tests that send what the wire's own functions would
 * not. */
#ifndef NSV_TESTS_TOOLS_FDS_H
#define NSV_TESTS_TOOLS_FDS_H

#include <stddef.h>
#include <sys/types.h>

#define NSV_FDS_MAX 32

/* One packet with n descriptors, which stay the caller's. What sendmsg says. */
ssize_t nsv_fds_send(int socket, const void *data, size_t len, const int *fds, size_t n);
/* The next one, if it is there: what recvmsg says. ret_fds has room for NSV_FDS_MAX; the *ret_n
 * that came are the caller's, close-on-exec. */
ssize_t nsv_fds_recv(int socket, void *data, size_t len, int *ret_fds, size_t *ret_n);

#endif
