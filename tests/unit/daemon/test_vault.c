/* Vaults alone, over a real loop, with the service manager's store played by the test: descriptors
 * in and out, what a crash leaves half done, what is wrong, and what there is too little of. A
 * daemon's death is played by giving up its vaults; what the store has then is passed to the next
 * one. */
#include "daemon/vault.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cmocka.h>

#include "tests/tools/fds.h"
#include "tests/tools/proc.h"
#include "tests/tools/rnd.h"
#include "tests/tools/store.h"
#include "tests/tools/users.h"

#define MAX_SESSION 700
#define N_FILE 5

/* ---- The manager */

static struct nsv_store manager;

static void manager_begin(void)
{
	char path[64];

	snprintf(path, sizeof(path), "/tmp/nanoserve-vault-%d", (int)getpid());
	if (nsv_store_begin(&manager, path) < 0)
		abort();
}

/* Does what it has been asked for since the last time. */
static void manager_turn(void)
{
	while (nsv_store_turn(&manager))
		;
}

/* What the next daemon is started with. */
static struct nsv_passed pass_all(void)
{
	struct nsv_passed p = {.n = (uint32_t)manager.n_stored};

	p.fds = calloc(NSV_STORE_MAX, sizeof(*p.fds));
	p.names = calloc(NSV_STORE_MAX, sizeof(*p.names));
	if (!p.fds || !p.names)
		abort();
	for (uint32_t i = 0; i < p.n; i++) {
		p.fds[i] = fcntl(manager.stored[i].fd, F_DUPFD_CLOEXEC, 3);
		p.names[i] = strdup(manager.stored[i].name);
	}
	return p;
}

/* ---- The daemon */

static struct rig {
	struct nsv_loop *loop;
	struct nsv_vaults v;
	int n_ready;
} rig;

/* Files whose inodes tell whose descriptors came back: session i has those of i. */
static int socks[N_FILE], peers[N_FILE], ups[N_FILE], downs[N_FILE];
static struct nsv_vault_place places[MAX_SESSION];
static int n_found[MAX_SESSION + 1];
static bool wanted[MAX_SESSION + 1];

static void on_ready(struct nsv_vaults *v)
{
	NSV_CONTAINER_OF(v, struct rig, v)->n_ready++;
}

static bool daemon_begin(void)
{
	struct nsv_err err;

	rig.n_ready = 0;
	if (nsv_loop_new(&rig.loop, &err) < 0)
		return false;
	nsv_vaults_init(&rig.v, rig.loop, true, on_ready);
	return true;
}

static void daemon_end(void)
{
	nsv_loop_free(rig.loop);
	nsv_vaults_deinit(&rig.v);
}

/* The vault that was asked for last becomes ready. */
static void wait_ready(void)
{
	int before = rig.n_ready;

	manager_turn();
	while (rig.n_ready == before)
		if (nsv_loop_turn(rig.loop, true) < 0)
			abort();
}

static struct nsv_vault_place place_of(uint32_t i)
{
	return (struct nsv_vault_place){.session_id = 1000 + i,
		.rec = i,
		.fds = {socks[i % N_FILE], ups[i % N_FILE], downs[i % N_FILE]}};
}

/* As a session does that waits for a vault. */
static int put(uint32_t i)
{
	places[i] = place_of(i);
	int ret = nsv_vaults_put(&rig.v, &places[i]);
	while (ret == 1) {
		wait_ready();
		ret = nsv_vaults_put(&rig.v, &places[i]);
	}
	return ret;
}

static bool same_file(int a, int b)
{
	struct stat x, y;

	return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_ino == y.st_ino;
}

static struct nsv_vault_place *found(void *user, const struct nsv_vault_place *f)
{
	const struct nsv_vault_place expected = place_of(f->rec);
	(void)user;

	assert_true(f->rec < MAX_SESSION);
	assert_int_equal(f->session_id, expected.session_id);
	for (int i = 0; i < NSV_VAULT_N_FD; i++)
		assert_true(same_file(f->fds[i], expected.fds[i]));
	if (!wanted[f->rec])
		return NULL;
	if (n_found[f->rec]++ == 0)
		places[f->rec] = *f;
	return &places[f->rec];
}

/* The next daemon, which wants the sessions below n: what nsv_vaults_adopt says. */
static int adopt(uint32_t n)
{
	struct nsv_passed p = pass_all();
	struct nsv_err err = {""};

	memset(n_found, 0, sizeof(n_found));
	for (uint32_t i = 0; i < MAX_SESSION; i++)
		wanted[i] = i < n;
	int ret = nsv_vaults_adopt(&rig.v, &p, found, NULL, &err);
	nsv_passed_deinit(&p);
	return ret;
}

static void close_found(uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		for (int k = 0; n_found[i] && k < NSV_VAULT_N_FD; k++)
			close(places[i].fds[k]);
}

static void make_files(void)
{
	for (int i = 0; i < N_FILE; i++) {
		int pair[2];
		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
			abort();
		socks[i] = pair[0];
		peers[i] = pair[1];
		ups[i] = memfd_create("up", MFD_CLOEXEC);
		downs[i] = memfd_create("down", MFD_CLOEXEC);
	}
}

static void close_files(void)
{
	for (int i = 0; i < N_FILE; i++) {
		close(socks[i]);
		close(peers[i]);
		close(ups[i]);
		close(downs[i]);
	}
}

static int n_open_at_setup;

static int count_open(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (d && readdir(d))
		n++;
	closedir(d);
	return n;
}

static int setup(void **state)
{
	(void)state;
	n_open_at_setup = count_open();
	make_files();
	manager_begin();
	return daemon_begin() ? 0 : -1;
}

/* Nothing was left open. */
static int teardown(void **state)
{
	(void)state;
	daemon_end();
	nsv_store_end(&manager);
	close_files();
	return count_open() == n_open_at_setup ? 0 : -1;
}

/* Is the session's socket connected still? */
static bool is_alive(uint32_t i)
{
	char c;
	ssize_t n = recv(peers[i % N_FILE], &c, 1, MSG_DONTWAIT);

	return n < 0 && errno == EAGAIN;
}

static uint32_t n_stored_of(const char *name)
{
	uint32_t n = 0;

	for (int i = 0; i < manager.n_stored; i++)
		n += strcmp(manager.stored[i].name, name) == 0;
	return n;
}

/* ---- In and out */

/* None is safe before the store has said so. */
static void test_a_vault_is_confirmed_first(void **state)
{
	(void)state;

	places[0] = place_of(0);
	assert_int_equal(nsv_vaults_put(&rig.v, &places[0]), 1);
	assert_null(places[0].vault);
	assert_int_equal(nsv_vaults_put(&rig.v, &places[0]), 1);
	wait_ready();
	assert_int_equal(n_stored_of("v1"), 2);
	assert_int_equal(nsv_vaults_put(&rig.v, &places[0]), 0);
	assert_non_null(places[0].vault);
	manager_turn();
	assert_int_equal(n_stored_of("v2"), 2); /* before it is needed */
}

static void test_sessions_come_back(void **state)
{
	uint32_t n = 300 + t_below(MAX_SESSION - 300);
	(void)state;

	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(put(i), 0);
	for (int round = 0; round < 3; round++) {
		daemon_end();
		manager_turn();
		assert_true(daemon_begin());
		assert_int_equal(adopt(n), 0);
		for (uint32_t i = 0; i < n; i++)
			assert_int_equal(n_found[i], 1);
		assert_int_equal(nsv_vaults_n_dead(&rig.v), 0);
		assert_int_equal(nsv_vaults_prepare(&rig.v), 0);
		close_found(n);
	}
}

/* As they would after years: those that have lasted for all that time keep their numbers. */
static void test_numbers_begin_again(void **state)
{
	enum { N = MAX_SESSION };
	(void)state;

	assert_int_equal(put(0), 0); /* v1 */
	daemon_end();
	assert_true(daemon_begin());
	assert_int_equal(adopt(1), 0);
	rig.v.last_number = UINT32_MAX - 2;
	for (uint32_t i = 1; i < N; i++)
		assert_int_equal(put(i), 0);
	assert_int_equal(n_stored_of("v1"), 2);
	assert_int_equal(n_stored_of("v4294967294"), 2);
	assert_int_equal(n_stored_of("v2") + n_stored_of("v3"), 4);
	close_found(1);
	daemon_end();
	manager_turn();
	assert_true(daemon_begin());
	assert_int_equal(adopt(N), 0);
	for (uint32_t i = 0; i < N; i++)
		assert_int_equal(n_found[i], 1);
	close_found(N);
}

/* Those that have ended leave the store too, and nobody else with them. */
static void test_the_dead_leave(void **state)
{
	enum { N = 600 };
	bool ended[N];
	(void)state;

	for (uint32_t i = 0; i < N; i++)
		assert_int_equal(put(i), 0);
	for (uint32_t i = 0; i < N; i++) {
		ended[i] = t_below(3) > 0;
		if (ended[i])
			nsv_vaults_remove(&rig.v, &places[i]);
		manager_turn();
		assert_true(nsv_loop_turn(rig.loop, false) >= 0);
	}
	while (nsv_vaults_n_dead(&rig.v) > 0) {
		nsv_vaults_tend(&rig.v, true);
		manager_turn();
		assert_true(nsv_loop_turn(rig.loop, false) >= 0);
	}
	assert_int_equal(n_stored_of("v1"), 0);
	daemon_end();
	assert_true(daemon_begin());
	assert_int_equal(adopt(N), 0);
	for (uint32_t i = 0; i < N; i++)
		assert_int_equal(n_found[i], !ended[i]);
	assert_int_equal(nsv_vaults_n_dead(&rig.v), 0);
	close_found(N);
}

/* Without a manager there is nothing to do. */
static void test_off(void **state)
{
	struct nsv_vaults v;
	struct nsv_vault_place place = place_of(0);
	(void)state;

	nsv_vaults_init(&v, rig.loop, false, on_ready);
	assert_int_equal(nsv_vaults_prepare(&v), 0);
	assert_int_equal(nsv_vaults_put(&v, &place), 0);
	assert_null(place.vault);
	nsv_vaults_remove(&v, &place);
	manager_turn();
	assert_int_equal(manager.n_stored, 0);
	nsv_vaults_deinit(&v);
}

/* ---- Cut off */

/* It died while a vault was being emptied, the store not having been told to forget it: its
 * sessions are in two. */
static void test_cut_off_while_emptying(void **state)
{
	enum { N = 40, N_LEFT = 5 };
	(void)state;

	for (uint32_t i = 0; i < N; i++)
		assert_int_equal(put(i), 0);
	wait_ready(); /* v2 */
	for (uint32_t i = N_LEFT; i < N; i++)
		nsv_vaults_remove(&rig.v, &places[i]);
	assert_int_equal(n_stored_of("v1") + n_stored_of("v2"), 4); /* not told yet */
	daemon_end();
	assert_true(daemon_begin());
	assert_int_equal(adopt(N_LEFT), 0);
	for (uint32_t i = 0; i < N_LEFT; i++)
		assert_int_equal(n_found[i], 2);
	close_found(N_LEFT);
}

static void test_a_session_in_two_vaults_lives(void **state)
{
	(void)state;

	assert_int_equal(put(0), 0);
	wait_ready();
	rig.v.open = NULL; /* as if the first were full */
	struct nsv_vault_place again = place_of(0);
	assert_int_equal(nsv_vaults_put(&rig.v, &again), 0);
	daemon_end();
	manager_turn();
	assert_true(daemon_begin());
	assert_int_equal(adopt(1), 0);
	assert_int_equal(n_found[0], 2);
	assert_true(is_alive(0));
	manager_turn();
	/* The one that was not needed. */
	assert_int_equal(n_stored_of("v1") + n_stored_of("v2"), 2);
	close_found(1);
}

static void test_what_nobody_wants_is_hung_up(void **state)
{
	char c;
	(void)state;

	assert_int_equal(put(0), 0);
	assert_int_equal(put(1), 0);
	daemon_end();
	manager_turn();
	assert_true(daemon_begin());
	assert_int_equal(adopt(1), 0);
	assert_true(is_alive(0));
	assert_int_equal(recv(peers[1], &c, 1, MSG_DONTWAIT), 0); /* the end */
	assert_int_equal(nsv_vaults_n_dead(&rig.v), 1);
	close_found(1);
}

/* The store lost one end: what lies in the other is there, and new sessions go elsewhere. */
static void test_half_a_vault(void **state)
{
	(void)state;

	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(put(i), 0);
	daemon_end();
	manager_turn();
	nsv_store_forget(&manager, "v2");
	/* The end that was sent into goes; messages lie at the other one. */
	close(manager.stored[0].fd);
	manager.stored[0] = manager.stored[--manager.n_stored];
	assert_true(daemon_begin());
	assert_int_equal(adopt(4), 0);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(n_found[i], 1);
	assert_int_equal(put(3), 0);
	assert_true(places[3].vault != places[0].vault);
	close_found(3);
}

/* ---- Wrong */

static void send_junk(int fd, size_t len, const int *fds, size_t n)
{
	const char data[64] = {0};

	assert_int_equal(nsv_fds_send(fd, data, len, fds, n), len);
}

/* Messages that no daemon writes, between good ones; names that none gives. */
static void test_what_no_daemon_wrote(void **state)
{
	const int fds[5] = {ups[0], ups[1], ups[2], ups[3], ups[4]};
	int pair[2];
	(void)state;

	assert_int_equal(put(0), 0);
	manager_turn();
	int end = manager.stored[0].fd; /* into which the daemon sends */
	for (size_t n = 0; n <= 5; n++)
		if (n != NSV_VAULT_N_FD)
			send_junk(end, 16, fds, n);
	send_junk(end, 15, fds, 3);
	send_junk(end, 17, fds, 3);
	send_junk(end, 1, NULL, 0);
	assert_int_equal(put(1), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	nsv_store_add(&manager, "v01", pair[0]);
	nsv_store_add(&manager, "v01", pair[1]);
	daemon_end();
	assert_true(daemon_begin());
	struct nsv_passed p = pass_all();
	struct nsv_err err;
	wanted[0] = wanted[1] = true;
	memset(n_found, 0, sizeof(n_found));
	assert_int_equal(nsv_vaults_adopt(&rig.v, &p, found, NULL, &err), 0);
	assert_int_equal(n_found[0], 1);
	assert_int_equal(n_found[1], 1);
	assert_int_equal(nsv_vaults_n_dead(&rig.v), 9); /* the one that is too long is seen twice */
	assert_true(nsv_passed_take(&p, "v1") < 0);
	int not_ours = nsv_passed_take(&p, "v01");
	assert_true(not_ours >= 0);
	close(not_ours);
	nsv_passed_deinit(&p);
	close_found(2);
}

/* ---- Too little */

#define MAX_ROOM 16

/* Under valgrind descriptors end sooner, and with another error. */
static void need_the_kernels_limit(void)
{
	const char *preloaded = getenv("LD_PRELOAD");

	if (preloaded && strstr(preloaded, "vgpreload")) {
		print_message("skipped: valgrind has a limit on descriptors of its own\n");
		skip();
	}
}

/* Room for n descriptors more: the limit is on their numbers, and the lowest free ones are given.
 * What it was before. */
static struct rlimit leave_room(int n)
{
	struct rlimit old, now;
	int fds[MAX_ROOM] = {0};

	for (int i = 0; i < n; i++)
		fds[i] = fcntl(manager.fd, F_DUPFD_CLOEXEC, 0);
	getrlimit(RLIMIT_NOFILE, &old);
	now = old;
	now.rlim_cur = (rlim_t)fds[n - 1] + 1;
	setrlimit(RLIMIT_NOFILE, &now);
	for (int i = 0; i < n; i++)
		close(fds[i]);
	return old;
}

static void test_no_descriptors_for_a_vault(void **state)
{
	(void)state;

	need_the_kernels_limit();
	places[0] = place_of(0);
	struct rlimit old = leave_room(1);
	int made = nsv_vaults_prepare(&rig.v), ret = nsv_vaults_put(&rig.v, &places[0]);
	setrlimit(RLIMIT_NOFILE, &old);
	assert_int_equal(made, -EMFILE);
	assert_int_equal(ret, -EMFILE);
	assert_null(places[0].vault);
	assert_int_equal(put(0), 0);
}

/* As many as can be had are taken over; the others are lost, and no descriptor of theirs is. */
static void test_descriptors_that_do_not_all_come(void **state)
{
	enum { N = 6 };
	(void)state;

	need_the_kernels_limit();
	for (uint32_t i = 0; i < N; i++)
		assert_int_equal(put(i), 0);
	daemon_end();
	manager_turn();
	assert_true(daemon_begin());
	struct nsv_passed p = pass_all();
	struct nsv_err err;
	memset(n_found, 0, sizeof(n_found));
	for (uint32_t i = 0; i < N; i++)
		wanted[i] = true;
	struct rlimit old = leave_room(2 * NSV_VAULT_N_FD + 2);
	int ret = nsv_vaults_adopt(&rig.v, &p, found, NULL, &err);
	setrlimit(RLIMIT_NOFILE, &old);
	assert_int_equal(ret, 0);
	for (uint32_t i = 0; i < N; i++)
		assert_int_equal(n_found[i], i < 2);
	assert_int_equal(nsv_vaults_n_dead(&rig.v), N - 2);
	assert_int_equal(put(N), 0);
	nsv_passed_deinit(&p);
	close_found(2);
}

/* The kernel counts descriptors that lie in messages against the user's RLIMIT_NOFILE, but
 * root's. */
static int fill_the_limit(void *arg)
{
	struct rlimit few = {.rlim_cur = 64, .rlim_max = 64};
	uint32_t n = 0;
	int ret;
	(void)arg;

	make_files();
	manager_begin();
	NSV_EXPECT(setrlimit(RLIMIT_NOFILE, &few) == 0);
	NSV_EXPECT(daemon_begin());
	while ((ret = put(n)) == 0 && n < MAX_SESSION - 1)
		n++;
	NSV_EXPECT(ret == -ETOOMANYREFS);
	NSV_EXPECT(n >= 64 / NSV_VAULT_N_FD && n <= 64 / NSV_VAULT_N_FD + 1);
	NSV_EXPECT(!places[n].vault);
	/* It goes on: when all have ended, there is room again. */
	for (uint32_t i = 0; i < n; i++)
		nsv_vaults_remove(&rig.v, &places[i]);
	nsv_vaults_tend(&rig.v, true);
	manager_turn();
	NSV_EXPECT(nsv_loop_turn(rig.loop, false) >= 0);
	NSV_EXPECT(put(0) == 0);
	daemon_end();
	nsv_store_end(&manager);
	return 0;
}

static void test_too_many_in_flight(void **state)
{
	(void)state;

	need_the_kernels_limit();
	nsv_user_need_root();
	/* A user whom no other suite's test has at the same time. */
	uid_t uid = 60000 + (uid_t)getpid() % 4000;
	assert_int_equal(nsv_user_end(nsv_user_begin(uid, fill_the_limit, NULL)), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_a_vault_is_confirmed_first, setup, teardown),
		cmocka_unit_test_setup_teardown(test_sessions_come_back, setup, teardown),
		cmocka_unit_test_setup_teardown(test_numbers_begin_again, setup, teardown),
		cmocka_unit_test_setup_teardown(test_the_dead_leave, setup, teardown),
		cmocka_unit_test_setup_teardown(test_off, setup, teardown),
		cmocka_unit_test_setup_teardown(test_cut_off_while_emptying, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_a_session_in_two_vaults_lives, setup, teardown),
		cmocka_unit_test_setup_teardown(test_what_nobody_wants_is_hung_up, setup, teardown),
		cmocka_unit_test_setup_teardown(test_half_a_vault, setup, teardown),
		cmocka_unit_test_setup_teardown(test_what_no_daemon_wrote, setup, teardown),
		cmocka_unit_test_setup_teardown(test_no_descriptors_for_a_vault, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_descriptors_that_do_not_all_come, setup, teardown),
		cmocka_unit_test(test_too_many_in_flight),
	};

	t_seed();
	nsv_proc_raise_fds(); /* what lies in messages counts against it */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
