/* What every folder may use: checked sizes, cleanup attributes, error texts. Includes nothing of
 * ours.
 *
 * Errors: a function returns 0 or -errno (fatal to the operation) or a documented value above 0.
 * Where a person must understand the error, the function also takes a `struct nsv_err *` (which
 * may be NULL) and leaves one sentence there; `return nsv_fail(err, -EINVAL, "...", ...)`. */
#ifndef NSV_SHM_BASE_H
#define NSV_SHM_BASE_H

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define NSV_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
/* The structure that a member lies in. */
#define NSV_CONTAINER_OF(p, type, member) ((type *)((char *)(p) - offsetof(type, member)))
#define NSV_CACHE_LINE 64
#define NSV_PAGE 4096

struct nsv_err {
	char text[256];
};

/* Writes the sentence (cut at the buffer's end) and returns `code`, so that it can be returned. */
__attribute__((format(printf, 3, 4))) static inline int nsv_fail(
	struct nsv_err *err, int code, const char *fmt, ...)
{
	if (err) {
		va_list ap;
		va_start(ap, fmt);
		vsnprintf(err->text, sizeof(err->text), fmt, ap);
		va_end(ap);
	}
	return code;
}

/* false: the exact result does not fit; *ret is then untouched. */
static inline bool nsv_mul(size_t a, size_t b, size_t *ret)
{
	size_t r;
	if (__builtin_mul_overflow(a, b, &r))
		return false;
	*ret = r;
	return true;
}

static inline bool nsv_add(size_t a, size_t b, size_t *ret)
{
	size_t r;
	if (__builtin_add_overflow(a, b, &r))
		return false;
	*ret = r;
	return true;
}

/* Rounds up to a multiple of `align` (a power of two); false on overflow. */
static inline bool nsv_align_up(size_t a, size_t align, size_t *ret)
{
	size_t r;
	if (__builtin_add_overflow(a, align - 1, &r))
		return false;
	*ret = r & ~(align - 1);
	return true;
}

static inline bool nsv_is_pow2(uint64_t x)
{
	return x && !(x & (x - 1));
}

static inline uint64_t nsv_min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t nsv_max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static inline size_t nsv_min(size_t a, size_t b)
{
	return a < b ? a : b;
}

static inline size_t nsv_max(size_t a, size_t b)
{
	return a > b ? a : b;
}

/* Between two looks at memory that another thread writes. */
static inline void nsv_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static inline void nsv_cleanup_free(void *p)
{
	free(*(void **)p);
}

static inline void nsv_cleanup_close(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

#define nsv_autofree __attribute__((cleanup(nsv_cleanup_free)))
#define nsv_autoclose __attribute__((cleanup(nsv_cleanup_close)))

#endif
