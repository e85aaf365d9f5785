/* A daemon over the tiny model with the configuration of a test, open to all users of the machine.
 * Failures are cmocka's. */
#ifndef NSV_TESTS_TOOLS_SERVE_H
#define NSV_TESTS_TOOLS_SERVE_H

#include "tests/tools/ask.h"
#include "tests/tools/daemon.h"

#define NSV_SERVE_BLOCKS 64

struct nsv_served {
	struct nsv_test_daemon daemon;
	char model[64], config[64];
};

void nsv_serve(struct nsv_served *s, const char *json);
struct nsv_client *nsv_serve_open(const struct nsv_served *s);
/* A short prompt answered with two tokens. */
void nsv_serve_ask(struct nsv_client *client, struct nsv_answer *a);
/* It serves, holds nothing of those that have gone, and ends well (leaks are a sanitizer's
 * find). */
void nsv_serve_end(struct nsv_served *s);
/* Ends it, whatever it holds: its wait status. */
int nsv_serve_stop(struct nsv_served *s);

#endif
