/* A first program: cc first.c -lnanoserve-client */
#include <nanoserve/client.h>
#include <stdio.h>

int main(void)
{
	const struct nsv_client_message question = {
		NSV_CLIENT_USER, "What is a daemon?", sizeof("What is a daemon?") - 1};
	struct nsv_client *client;
	struct nsv_request *request;
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	char why[256];

	if (nsv_client_open(NULL, NULL, why, sizeof(why), &client) < 0)
		return fprintf(stderr, "%s\n", why), 1;
	if (nsv_client_submit_chat(client, &question, 1, NULL, &request) < 0)
		return fprintf(stderr, "%s\n", nsv_client_error(client)), 1;
	while (nsv_request_next(request, -1, &chunk) > 0)
		fwrite(chunk.text, 1, chunk.text_len, stdout);
	nsv_client_close(client);
	return 0;
}
