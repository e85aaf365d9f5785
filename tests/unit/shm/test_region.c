/* Regions: sealed, private, all there; what another process hands over is checked before it is
 * mapped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "shm/region.h"
#include "tests/tools/wait.h"

static void test_create(void **state)
{
	struct nsv_region r = NSV_REGION_NONE;
	struct nsv_err err;
	struct stat st;

	(void)state;
	assert_int_equal(nsv_region_create(&r, "test", 10000, NSV_REGION_POPULATE, &err), 0);
	assert_int_equal(r.len, 12288);
	assert_int_equal(fstat(r.fd, &st), 0);
	assert_int_equal(st.st_size, 12288);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_true(st.st_blocks * 512 >= 12288); /* every page is there */
	assert_int_equal(fcntl(r.fd, F_GETFD), FD_CLOEXEC);
	int seals = fcntl(r.fd, F_GET_SEALS);
	assert_true(seals & F_SEAL_SHRINK && seals & F_SEAL_GROW && seals & F_SEAL_SEAL);
	assert_int_equal(ftruncate(r.fd, 4096), -1);
	assert_int_equal(ftruncate(r.fd, 1 << 20), -1);
	assert_int_equal(fcntl(r.fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	for (size_t i = 0; i < r.len; i++)
		assert_int_equal(((unsigned char *)r.map)[i], 0);
	nsv_region_deinit(&r);
	assert_int_equal(r.fd, -1);
	nsv_region_deinit(&r);
}

/* One that is to be given its pages part by part has those alone that it was given. */
static void test_empty(void **state)
{
	struct nsv_region r = NSV_REGION_NONE;
	struct nsv_err err = {""};
	struct stat st;

	(void)state;
	assert_int_equal(nsv_region_create(&r, "test", 10 * NSV_PAGE, NSV_REGION_EMPTY, &err), 0);
	assert_int_equal(fstat(r.fd, &st), 0);
	assert_int_equal(st.st_blocks, 0);
	assert_int_equal(nsv_region_allocate(&r, NSV_PAGE + 1, NSV_PAGE, &err), 0);
	assert_int_equal(fstat(r.fd, &st), 0);
	assert_int_equal(st.st_blocks * 512, 2 * NSV_PAGE);
	assert_int_equal(nsv_region_allocate(&r, 0, r.len, &err), 0);
	assert_int_equal(fstat(r.fd, &st), 0);
	assert_int_equal(st.st_blocks * 512, 10 * NSV_PAGE);
	assert_int_equal(nsv_region_allocate(&r, r.len, NSV_PAGE, &err), -EPERM); /* sealed */
	assert_int_equal(nsv_region_allocate_huge(&r, 1, r.len, &err), -EPERM);
	assert_string_not_equal(err.text, "");
	nsv_region_deinit(&r);
}

/* Part by part with huge pages where they are whole, and not beyond. */
static void test_empty_huge(void **state)
{
	const size_t huge = NSV_HUGE_PAGE;
	struct nsv_region r = NSV_REGION_NONE;
	struct stat st;

	(void)state;
	assert_int_equal(nsv_region_create(&r, "test", 5 * huge, NSV_REGION_EMPTY, NULL), 0);
	assert_int_equal(nsv_region_allocate_huge(&r, huge - 1, 2 * huge, NULL), 0);
	assert_int_equal(fstat(r.fd, &st), 0);
	assert_in_range(st.st_blocks * 512, 2 * huge, 2 * huge + 2 * NSV_PAGE);
	assert_int_equal(nsv_region_allocate_huge(&r, 3 * huge, 100, NULL), 0);
	assert_int_equal(fstat(r.fd, &st), 0);
	assert_in_range(st.st_blocks * 512, 2 * huge, 2 * huge + 3 * NSV_PAGE);
	assert_int_equal(nsv_region_allocate(&r, 0, r.len, NULL), 0);
	for (size_t i = 0; i < r.len; i += 512)
		assert_int_equal(((unsigned char *)r.map)[i], 0);
	memset(r.map, 1, r.len);
	nsv_region_deinit(&r);
}

/* Large regions lie where huge pages are whole; what is not a whole one is there too. */
static void test_huge(void **state)
{
	const size_t len = (5u << 20) + 4096;
	struct nsv_region r = NSV_REGION_NONE, again = NSV_REGION_NONE;
	struct nsv_err err;
	struct stat st;

	(void)state;
	assert_int_equal(nsv_region_create(&r, "test", len, NSV_REGION_HUGE, NULL), 0);
	assert_int_equal((uintptr_t)r.map % (2u << 20), 0);
	assert_int_equal(fstat(r.fd, &st), 0);
	assert_int_equal(st.st_blocks * 512, len);
	for (size_t i = 0; i < len; i += 512)
		assert_int_equal(((unsigned char *)r.map)[i], 0);
	memset(r.map, 1, r.len);
	assert_int_equal(nsv_region_adopt(&again, dup(r.fd), len, true, &err), 0);
	assert_int_equal((uintptr_t)again.map % (2u << 20), 0);
	assert_int_equal(((unsigned char *)again.map)[len - 1], 1);
	nsv_region_deinit(&again);
	nsv_region_deinit(&r);
}

/* KiB of shared memory that this process has mapped as huge pages. */
static long huge_kib(void)
{
	FILE *f = fopen("/proc/self/smaps_rollup", "re");
	char line[128];
	long kib = -1;

	while (f && kib < 0 && fgets(line, sizeof(line), f))
		if (sscanf(line, "ShmemPmdMapped: %ld", &kib) != 1)
			kib = -1;
	if (f)
		fclose(f);
	return kib;
}

static void fill_in(struct nsv_region *r)
{
	for (size_t i = 0; i < r->len / sizeof(uint32_t); i++)
		((uint32_t *)r->map)[i] = (uint32_t)(i * 2654435761u);
}

static void assert_filled_in(const struct nsv_region *r)
{
	for (size_t i = 0; i < r->len / sizeof(uint32_t); i++)
		assert_int_equal(((uint32_t *)r->map)[i], (uint32_t)(i * 2654435761u));
}

/* Small pages in use become huge ones, piece by piece, and keep what is in them. true: all did, or
 * the kernel makes none. */
static bool join_all(void)
{
	const size_t whole = 38u << 20, len = whole + 4096;
	struct nsv_region r = NSV_REGION_NONE;
	bool all = true;

	assert_int_equal(nsv_region_create(&r, "test", len, 0, NULL), 0);
	assert_int_equal(r.n_joined, 0);
	fill_in(&r);
	long before = huge_kib();
	while (nsv_region_join(&r))
		assert_true(r.n_joined <= whole);
	assert_filled_in(&r);
	if (r.n_joined == whole && before >= 0)
		all = huge_kib() - before == (long)(whole >> 10);
	else
		print_message("the kernel makes no huge pages here\n");
	assert_false(nsv_region_join(&r));
	nsv_region_deinit(&r);
	return all;
}

/* The kernel passes over pages that somebody holds for a moment: once nobody does, all join. */
static void test_join(void **state)
{
	(void)state;
	assert_true(NSV_WAIT_FOR(join_all()));
}

/* A page held while the others join keeps its huge page from it, until a later round. true: as
 * join_all. */
static bool join_held(void)
{
	const size_t whole = 20u << 20;
	struct nsv_region r = NSV_REGION_NONE;
	int pipe_fds[2];

	assert_int_equal(nsv_region_create(&r, "test", whole, 0, NULL), 0);
	fill_in(&r);
	long before = huge_kib();
	struct iovec held = {(char *)r.map + (3u << 20), 4096};
	assert_int_equal(pipe(pipe_fds), 0);
	assert_int_equal(vmsplice(pipe_fds[1], &held, 1, 0), 4096);
	while (nsv_region_join(&r) && r.n_joined < whole)
		;
	assert_true(before < 0 || huge_kib() - before < (long)(whole >> 10));
	close(pipe_fds[0]);
	close(pipe_fds[1]);
	bool makes_none = r.n_joined < whole || before < 0;
	while (nsv_region_join(&r))
		;
	bool all = makes_none || huge_kib() - before == (long)(whole >> 10);
	assert_filled_in(&r);
	nsv_region_deinit(&r);
	return all;
}

static void test_join_held(void **state)
{
	(void)state;
	assert_true(NSV_WAIT_FOR(join_held()));
}

/* However far it came at once: all of it is there, and can be joined. */
static void test_huge_later(void **state)
{
	const size_t len = (70u << 20) + 8192;
	struct nsv_region r = NSV_REGION_NONE;
	struct stat st;

	(void)state;
	assert_int_equal(nsv_region_create(&r, "test", len, NSV_REGION_HUGE_LATER, NULL), 0);
	assert_int_equal(fstat(r.fd, &st), 0);
	assert_int_equal(st.st_blocks * 512, len);
	fill_in(&r);
	while (nsv_region_join(&r))
		;
	assert_filled_in(&r);
	nsv_region_deinit(&r);
}

/* The reader's descriptor can neither write, nor punch, nor be mapped writable, nor be opened anew
 * for writing by another user (its mode); but it sees what the writer writes. */
static void test_read_only(void **state)
{
	struct nsv_region r = NSV_REGION_NONE, reader = NSV_REGION_NONE;
	struct nsv_err err;
	int fd = -1;

	(void)state;
	assert_int_equal(nsv_region_create(&r, "test", 4096, 0, &err), 0);
	assert_int_equal(nsv_region_reopen_ro(&r, &fd), 0);
	assert_int_equal(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	assert_int_equal(write(fd, "x", 1), -1);
	assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
	assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
	assert_int_equal(nsv_region_adopt(&reader, fd, 4096, true, &err), -EACCES);
	assert_int_equal(nsv_region_adopt(&reader, fd, 4096, false, &err), 0);
	assert_int_equal(mprotect(reader.map, 4096, PROT_READ | PROT_WRITE), -1);
	strcpy(r.map, "seen");
	assert_string_equal(reader.map, "seen");
	nsv_region_deinit(&reader);
	nsv_region_deinit(&r);
}

static void test_adopt_refuses(void **state)
{
	struct nsv_region r = NSV_REGION_NONE, good = NSV_REGION_NONE;
	struct nsv_err err;
	int unsealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);

	(void)state;
	assert_int_equal(ftruncate(unsealed, 4096), 0);
	assert_int_equal(nsv_region_adopt(&r, unsealed, 4096, true, &err), -EPROTO);
	assert_int_equal(nsv_region_adopt(&r, file, 4096, false, &err), -EPROTO);
	assert_int_equal(nsv_region_create(&good, "test", 8192, 0, &err), 0);
	assert_int_equal(nsv_region_adopt(&r, good.fd, 4096, true, &err), -EPROTO);
	assert_int_equal(nsv_region_adopt(&r, good.fd, 0, true, &err), -EPROTO);
	assert_int_equal(r.fd, -1);
	assert_int_equal(nsv_region_create(&r, "test", 0, 0, &err), -EINVAL);
	assert_int_equal(nsv_region_create(&r, "test", SIZE_MAX, 0, &err), -EINVAL);
	assert_true(nsv_region_create(&r, "test", (size_t)1 << 55, 0, &err) < 0);
	nsv_region_deinit(&good);
	close(unsealed);
	close(file);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_create),
		cmocka_unit_test(test_empty),
		cmocka_unit_test(test_empty_huge),
		cmocka_unit_test(test_huge),
		cmocka_unit_test(test_join),
		cmocka_unit_test(test_join_held),
		cmocka_unit_test(test_huge_later),
		cmocka_unit_test(test_read_only),
		cmocka_unit_test(test_adopt_refuses),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
