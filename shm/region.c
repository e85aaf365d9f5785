/* memfds: made, sealed, mapped, checked. */
#include "shm/region.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "shm/clock.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008u
#endif

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define HUGE_PIECE (8 * NSV_HUGE_PAGE) /* joined by one call, each of which has a price of its own */
#define HUGE_ROUNDS 4u	       /* in which what was missed is asked for */
#define SLOW_PIECE_NS 16000000u    /* five times what one takes that the machine has at hand */

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* A memfd that can be sealed. Kernels before 6.3 refuse MFD_NOEXEC_SEAL: there it is left out and
 * the mode, 0600, forbids execution all the same. */
static int create_fd(const char *name)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	return fd < 0 ? -errno : fd;
}

/* Has the descriptor the seals? Asked, not assumed: a fallback may have lost the right to seal. */
static int check_seals(int fd, struct nsv_err *err)
{
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0)
		return nsv_fail(err, -EPROTO, "not a memfd: it has no seals");
	if ((seals & SEALS) != SEALS)
		return nsv_fail(err, -EPROTO, "a region has the seals %#x: %#x are needed",
			(unsigned int)seals, (unsigned int)SEALS);
	return 0;
}

/* Maps where huge pages are whole: somewhere, what they do not need given back. */
static void *map_aligned(int fd, size_t len, int prot)
{
	size_t end, room;

	if (len < NSV_HUGE_PAGE || !nsv_align_up(len, NSV_PAGE, &end) ||
		!nsv_add(end, NSV_HUGE_PAGE, &room))
		return mmap(NULL, len, prot, MAP_SHARED, fd, 0);
	char *at = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return MAP_FAILED;
	size_t before = -(uintptr_t)at & (NSV_HUGE_PAGE - 1);
	void *map = mmap(at + before, len, prot, MAP_SHARED | MAP_FIXED, fd, 0);
	if (map == MAP_FAILED) {
		munmap(at, room);
		return map;
	}
	if (before)
		munmap(at, before);
	munmap(at + before + end, NSV_HUGE_PAGE - before);
	return map;
}

static int map_fd(int fd, size_t len, int prot, void **ret_map, struct nsv_err *err)
{
	void *map = map_aligned(fd, len, prot);

	if (map == MAP_FAILED)
		return nsv_fail(err, -errno, "mapping %zu bytes: %s", len, strerror(errno));
	if (madvise(map, len, MADV_DONTDUMP) < 0) {
		int code = -errno;
		munmap(map, len);
		return nsv_fail(err, code, "MADV_DONTDUMP: %s", strerror(-code));
	}
	*ret_map = map;
	return 0;
}

int nsv_region_allocate(
	const struct nsv_region *region, size_t off, size_t len, struct nsv_err *err)
{
	int code;

	do
		code = fallocate(region->fd, 0, (off_t)off, (off_t)len) < 0 ? -errno : 0;
	while (code == -EINTR);
	if (code < 0)
		return nsv_fail(err, code, "no memory for a region of %zu bytes: %s", region->len,
			strerror(-code));
	return 0;
}

static size_t whole_len(const struct nsv_region *region)
{
	return region->len & ~(NSV_HUGE_PAGE - 1);
}

/* From the beginning, for what was missed: what is joined already costs little. */
static bool begin_round(struct nsv_region *region)
{
	if (!region->has_missed || region->n_round + 1 == HUGE_ROUNDS)
		return false;
	region->has_missed = false;
	region->n_round++;
	region->n_joined = 0;
	return true;
}

/* Huge pages in place of what is there, whatever the machine's setting for shared memory is, short
 * of "deny". Each place is touched first: Linux 6.1 joins one that is in no page table, calls that
 * -EINVAL all the same and leaves out those after it. */
static int join(const struct nsv_region *region, size_t off, size_t len)
{
	char *map = region->map;

	for (size_t at = off; at < off + len; at += NSV_HUGE_PAGE)
		(void)*(volatile const char *)(map + at);
	return madvise(map + off, len, MADV_COLLAPSE) < 0 ? -errno : 0;
}

/* The next piece. Every place has something. */
bool nsv_region_join(struct nsv_region *region)
{
	if (region->n_joined == whole_len(region) && !begin_round(region))
		return false;
	size_t len = nsv_min(whole_len(region) - region->n_joined, HUGE_PIECE);
	int ret = join(region, region->n_joined, len);
	if (ret < 0 && ret != -EAGAIN)
		return false;
	region->has_missed |= ret < 0;
	region->n_joined += len;
	return true;
}

/* A byte of each huge page's place, so that there is something to join and little to copy. The
 * kernel joins on the node of what there is. */
static bool begin_places(const struct nsv_region *region, size_t begin, size_t end)
{
	for (size_t at = begin; at < end; at += NSV_HUGE_PAGE)
		if (fallocate(region->fd, 0, (off_t)at, NSV_PAGE) < 0)
			return false;
	return true;
}

void nsv_region_join_now(struct nsv_region *region, unsigned int flags)
{
	bool later = flags & NSV_REGION_HUGE_LATER;
	uint64_t start_ns;

	do
		start_ns = nsv_now_ns();
	while (nsv_region_join(region) && !(later && nsv_now_ns() - start_ns > SLOW_PIECE_NS));
}

/* Kernels before 6.1 cannot; where memory is short or in pieces, small pages are left to who
 * allocates the rest, and so they are where they may come later and a piece takes long: pages that
 * the host of a virtual machine must find first. */
static void take_huge_pages(struct nsv_region *region, unsigned int flags)
{
	if (begin_places(region, 0, whole_len(region)))
		nsv_region_join_now(region, flags);
}

int nsv_region_allocate_huge(
	const struct nsv_region *region, size_t off, size_t len, struct nsv_err *err)
{
	size_t begin = (off + NSV_HUGE_PAGE - 1) & ~(NSV_HUGE_PAGE - 1);
	size_t end = (off + len) & ~(NSV_HUGE_PAGE - 1);

	if (begin_places(region, begin, end))
		for (size_t at = begin; at < end; at += HUGE_PIECE)
			(void)join(region, at, nsv_min(end - at, HUGE_PIECE));
	return nsv_region_allocate(region, off, len, err);
}

/* Maps a new memfd and gives it its pages: what huge ones cannot be had for, fallocate gets or
 * reports. Huge pages are cleared here, ten times as fast as small ones at their first use; pages
 * of fallocate then, and nobody waits for those that nobody uses. */
static int fill(struct nsv_region *region, unsigned int flags, struct nsv_err *err)
{
	int ret = map_fd(region->fd, region->len, PROT_READ | PROT_WRITE, &region->map, err);

	if (ret < 0 || (flags & NSV_REGION_EMPTY))
		return ret;
	if (flags & (NSV_REGION_HUGE | NSV_REGION_HUGE_LATER))
		take_huge_pages(region, flags);
	ret = nsv_region_allocate(region, 0, region->len, err);
	if (ret == 0 && (flags & NSV_REGION_POPULATE))
		(void)madvise(region->map, region->len, MADV_POPULATE_WRITE);
	return ret;
}

/* Mode, length, pages and seals of a new memfd. */
static int prepare(struct nsv_region *region, unsigned int flags, struct nsv_err *err)
{
	if (fchmod(region->fd, 0600) < 0)
		return nsv_fail(err, -errno, "fchmod of a region: %s", strerror(errno));
	if (ftruncate(region->fd, (off_t)region->len) < 0)
		return nsv_fail(
			err, -errno, "a region of %zu bytes: %s", region->len, strerror(errno));
	int ret = fill(region, flags, err);
	if (ret < 0)
		return ret;
	if (fcntl(region->fd, F_ADD_SEALS, SEALS) < 0)
		return nsv_fail(err, -errno, "sealing a region: %s", strerror(errno));
	return check_seals(region->fd, err);
}

int nsv_region_create(struct nsv_region *ret, const char *name, size_t len, unsigned int flags,
	struct nsv_err *err)
{
	struct nsv_region region = NSV_REGION_NONE;

	if (len == 0 || !nsv_align_up(len, NSV_PAGE, &region.len) || region.len > INT64_MAX)
		return nsv_fail(err, -EINVAL, "a region cannot have %zu bytes", len);
	region.fd = create_fd(name);
	if (region.fd < 0)
		return nsv_fail(err, region.fd, "memfd_create: %s", strerror(-region.fd));
	int code = prepare(&region, flags, err);
	if (code < 0) {
		nsv_region_deinit(&region);
		return code;
	}
	*ret = region;
	return 0;
}

int nsv_region_adopt(struct nsv_region *ret, int fd, size_t len, bool writable, struct nsv_err *err)
{
	struct nsv_region region = {.fd = fd, .len = len};
	struct stat st;
	int code = check_seals(fd, err);

	if (code < 0)
		return code;
	if (fstat(fd, &st) < 0)
		return nsv_fail(err, -errno, "fstat of a region: %s", strerror(errno));
	if (len == 0 || (uint64_t)st.st_size != len)
		return nsv_fail(err, -EPROTO, "a region has %lld bytes: %zu expected",
			(long long)st.st_size, len);
	code = map_fd(fd, len, writable ? PROT_READ | PROT_WRITE : PROT_READ, &region.map, err);
	if (code < 0)
		return code;
	*ret = region;
	return 0;
}

int nsv_region_reopen_ro(const struct nsv_region *region, int *ret_fd)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", region->fd);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

void nsv_region_deinit(struct nsv_region *region)
{
	if (region->map)
		munmap(region->map, region->len);
	if (region->fd >= 0)
		close(region->fd);
	*region = NSV_REGION_NONE;
}
