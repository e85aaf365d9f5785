/* Several prompts at once in the caller's own event loop, beside a timer.
 *     cc epoll.c -lnanoserve-client
 *     epoll PROMPT...    prints each answer as it is whole; gives up after a minute */
#include <errno.h>
#include <nanoserve/client.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

static void die(const char *text)
{
	fprintf(stderr, "%s\n", text);
	exit(EXIT_FAILURE);
}

static struct nsv_client *ask_all(char **prompts, int n)
{
	struct nsv_client_options options;
	struct nsv_client *client;
	struct nsv_request *request;
	char why[256];

	nsv_client_options_init(&options);
	options.n_slot = (uint32_t)n;
	if (nsv_client_open(NULL, &options, why, sizeof(why), &client) < 0)
		die(why);
	for (int i = 0; i < n; i++) {
		struct nsv_client_message question = {
			NSV_CLIENT_USER, prompts[i], strlen(prompts[i])};
		if (nsv_client_submit_chat(client, &question, 1, NULL, &request) < 0)
			die(nsv_client_error(client));
		nsv_request_set_data(request, prompts[i]);
	}
	return client;
}

/* Prints what is whole. The number of answers that were. */
static int print_answers(struct nsv_client *client)
{
	struct nsv_request *request;
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	int n = 0;

	while ((request = nsv_client_ready(client))) {
		int ret = nsv_request_collect(request, 0, &chunk);
		if (ret == -EAGAIN)
			continue; /* there will be more news */
		if (ret < 0)
			die(nsv_client_error(client));
		printf("> %s\n%.*s\n", (char *)nsv_request_data(request), (int)chunk.text_len,
			chunk.text ? chunk.text : "");
		nsv_request_free(request);
		n++;
	}
	return n;
}

static void watch(int epoll, int fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

	if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0)
		die(strerror(errno));
}

int main(int argc, char **argv)
{
	const struct itimerspec minute = {.it_value = {.tv_sec = 60}};
	struct epoll_event event;
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);

	if (argc < 2)
		die("usage: epoll PROMPT...");
	struct nsv_client *client = ask_all(argv + 1, argc - 1);
	watch(epoll, nsv_client_fd(client));
	watch(epoll, timer);
	timerfd_settime(timer, 0, &minute, NULL);
	for (int left = argc - 1; left > 0;) {
		left -= print_answers(client);
		if (left == 0)
			break;
		/* No news: sleep until there is some, or something else comes. */
		if (nsv_client_arm(client) == 0 && epoll_wait(epoll, &event, 1, -1) > 0 &&
			event.data.fd == timer)
			die("a minute is over");
		if (nsv_client_dispatch(client) < 0)
			die(nsv_client_error(client));
	}
	nsv_client_close(client);
	return EXIT_SUCCESS;
}
