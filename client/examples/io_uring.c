/* An answer streamed in the caller's own io_uring, beside a timeout.
 *     cc io_uring.c -lnanoserve-client -luring
 *     io_uring PROMPT    prints the answer as it comes; gives up after a minute */
#include <liburing.h>
#include <nanoserve/client.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NEWS = 1, TIMEOUT = 2 }; /* user data of the ring's completions */

static void die(const char *text)
{
	fprintf(stderr, "%s\n", text);
	exit(EXIT_FAILURE);
}

static struct nsv_request *ask(const char *prompt, struct nsv_client **ret_client)
{
	const struct nsv_client_message question = {NSV_CLIENT_USER, prompt, strlen(prompt)};
	struct nsv_request *request;
	char why[256];

	if (nsv_client_open(NULL, NULL, why, sizeof(why), ret_client) < 0)
		die(why);
	if (nsv_client_submit_chat(*ret_client, &question, 1, NULL, &request) < 0)
		die(nsv_client_error(*ret_client));
	return request;
}

/* Prints what has come: is there more to come? */
static int print_more(struct nsv_client *client, struct nsv_request *request)
{
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	int ret;

	while ((ret = nsv_request_next(request, 0, &chunk)) > 0)
		fwrite(chunk.text, 1, chunk.text_len, stdout);
	fflush(stdout);
	if (ret < 0 && ret != -EAGAIN)
		die(nsv_client_error(client));
	return ret == -EAGAIN;
}

static void take_completions(struct io_uring *ring, struct nsv_client *client)
{
	struct io_uring_cqe *cqe;

	while (io_uring_peek_cqe(ring, &cqe) == 0) {
		if (cqe->user_data == TIMEOUT)
			die("a minute is over");
		if (cqe->res < 0)
			die(strerror(-cqe->res));
		if (!(cqe->flags & IORING_CQE_F_MORE)) /* the kernel ended the poll: anew */
			nsv_client_prep_poll(client, io_uring_get_sqe(ring), NEWS);
		io_uring_cqe_seen(ring, cqe);
	}
}

int main(int argc, char **argv)
{
	struct __kernel_timespec minute = {.tv_sec = 60};
	struct nsv_client *client;
	struct io_uring ring;

	if (argc != 2)
		die("usage: io_uring PROMPT");
	if (io_uring_queue_init(8, &ring, 0) < 0)
		die("no io_uring here");
	struct nsv_request *request = ask(argv[1], &client);
	nsv_client_prep_poll(client, io_uring_get_sqe(&ring), NEWS);
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
	io_uring_prep_timeout(sqe, &minute, 0, 0);
	sqe->user_data = TIMEOUT;
	while (print_more(client, request)) {
		/* No news: sleep until there is some, or something else comes. */
		if (nsv_client_arm(client) == 0)
			io_uring_submit_and_wait(&ring, 1);
		take_completions(&ring, client);
		if (nsv_client_dispatch(client) < 0)
			die(nsv_client_error(client));
	}
	nsv_client_close(client);
	io_uring_queue_exit(&ring);
	return EXIT_SUCCESS;
}
