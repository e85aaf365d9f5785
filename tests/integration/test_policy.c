/* Who may connect: users and groups of the config, seen from processes of other users. */
#include <grp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "tests/tools/ask.h"
#include "tests/tools/daemon.h"
#include "tests/tools/proc.h"
#include "tests/tools/rnd.h"
#include "tests/tools/tiny.h"
#include "tests/tools/users.h"

#define SERVED 1   /* exit codes of a client: it had an answer; */
#define REFUSED 2  /* it was refused, and told so; */
#define WRONG 3	   /* anything else */

static struct nsv_test_daemon served;
static char config[64];

/* A process with these ids asks once. */
struct person {
	uid_t uid;
	gid_t gid;
	size_t n_group;
	gid_t groups[200];
};

/* A daemon whose socket everybody can open. */
static void serve(const char *json)
{
	const char *extra[] = {"--kv-blocks", "64", "--threads", "1", "--config", config, NULL};

	assert_int_equal(nsv_test_config(config, sizeof(config), json), 0);
	assert_int_equal(nsv_test_daemon_start(&served, nsv_tiny_path, extra), 0);
	assert_int_equal(nsv_test_daemon_let_all(&served), 0);
}

/* What was refused has left nothing. */
static void end_serving(void)
{
	struct nsv_client *client = nsv_ask_open(served.socket);

	assert_non_null(client);
	assert_true(nsv_ask_status_until(client, "sessions", 1));
	nsv_client_close(client);
	assert_int_equal(nsv_test_daemon_stop(&served, SIGTERM), 0);
	unlink(config);
}

static int ask(void)
{
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));
	struct nsv_client_options o;
	struct nsv_client *client;
	char text[256];

	nsv_ask_options(&o);
	int ret = nsv_client_open(served.socket, &o, text, sizeof(text), &client);

	if (ret == -EACCES)
		return strstr(text, "not among the users and groups") ? REFUSED : WRONG;
	if (ret < 0)
		return WRONG;
	nsv_ask_hello(client, a);
	nsv_client_close(client);
	return a->n_token == 8 ? SERVED : WRONG;
}

static int as(const struct person *p)
{
	fflush(stdout);
	pid_t pid = nsv_proc_fork();
	if (pid == 0)
		_exit(setgroups(p->n_group, p->groups) < 0 ||
					setresgid(p->gid, p->gid, p->gid) < 0 ||
					setresuid(p->uid, p->uid, p->uid) < 0
				? WRONG
				: ask());
	int code = nsv_user_end(pid);
	return code < 0 ? WRONG : code;
}

static int as_id(uid_t uid, gid_t gid)
{
	return as(&(struct person){.uid = uid, .gid = gid});
}

static void test_everybody_by_default(void **state)
{
	(void)state;

	nsv_user_need_root();
	serve("{}");
	assert_int_equal(as_id(64001, 64001), SERVED);
	assert_int_equal(as_id(0, 0), SERVED);
	end_serving();
}

static void test_users(void **state)
{
	(void)state;

	nsv_user_need_root();
	serve("{\"users\": [64001, \"nobody\"]}");
	assert_int_equal(as_id(64001, 64009), SERVED);
	assert_int_equal(as_id(65534, 64009), SERVED);
	assert_int_equal(as_id(64002, 64001), REFUSED); /* a group's number is no user's */
	assert_int_equal(as_id(0, 0), SERVED);
	end_serving();
}

/* The group of the process itself, or any of its others, the last of many included. */
static void test_groups(void **state)
{
	struct person p = {.uid = 64002, .gid = 64009, .n_group = NSV_ARRAY_LEN(p.groups)};
	(void)state;

	nsv_user_need_root();
	serve("{\"groups\": [64100, \"games\"]}");
	for (size_t i = 0; i < p.n_group; i++)
		p.groups[i] = (gid_t)(65000 + i);
	assert_int_equal(as(&p), REFUSED);
	p.groups[t_below((uint32_t)p.n_group)] = 64100;
	assert_int_equal(as(&p), SERVED);
	assert_int_equal(as_id(64002, 64100), SERVED);
	assert_int_equal(as_id(64100, 64009), REFUSED);
	end_serving();
}

static void test_either_will_do(void **state)
{
	(void)state;

	nsv_user_need_root();
	serve("{\"users\": [64001], \"groups\": [64100]}");
	assert_int_equal(as_id(64001, 64009), SERVED);
	assert_int_equal(as_id(64002, 64100), SERVED);
	assert_int_equal(as_id(64002, 64009), REFUSED);
	end_serving();
}

/* Nobody is listed: root alone, who runs this daemon. Many refusals leave it as it was. */
static void test_nobody(void **state)
{
	(void)state;

	nsv_user_need_root();
	serve("{\"users\": []}");
	for (int i = 0; i < 50; i++)
		assert_int_equal(as_id(64001, 64001), REFUSED);
	assert_int_equal(as_id(0, 64001), SERVED);
	end_serving();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_everybody_by_default),
		cmocka_unit_test(test_users),
		cmocka_unit_test(test_groups),
		cmocka_unit_test(test_either_will_do),
		cmocka_unit_test(test_nobody),
	};

	return cmocka_run_group_tests(tests, nsv_tiny_setup, nsv_tiny_teardown);
}
