/* Parameters and chat messages as the bytes that the wire wants. Pure functions; a length first,
 * then the writing of exactly that many bytes. */
#ifndef NSV_CLIENT_ENCODE_H
#define NSV_CLIENT_ENCODE_H

#include <nanoserve/client.h>
#include "shm/abi.h"
#include "shm/base.h"

/* The caller's parameters in the library's own form; NULL: all neutral. 0, or -EINVAL and a
 * sentence: a size that no version had, or a flag that this one does not know. */
int nsv_params_import(
	const struct nsv_client_params *params, struct nsv_client_params *ret, struct nsv_err *err);
/* 0, or -EINVAL and a sentence (too many or too long stop strings: the wire's own limits). */
int nsv_params_len(const struct nsv_client_params *params, size_t *ret_len, struct nsv_err *err);
void nsv_params_write(const struct nsv_client_params *params, size_t len, unsigned char *out);

/* 0, or -EINVAL and a sentence. */
int nsv_messages_len(
	const struct nsv_client_message *messages, size_t n, size_t *ret_len, struct nsv_err *err);
void nsv_messages_write(const struct nsv_client_message *messages, size_t n, unsigned char *out);

#endif
