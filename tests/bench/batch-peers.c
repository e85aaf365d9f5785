/* llama.cpp at the same work: llama-batched-bench, which decodes without a server, and llama-server
 * over HTTP. */
#include <string.h>

#include "shm/clock.h"
#include "tests/bench/batch.h"
#include "tests/tools/daemon.h"
#include "tests/tools/stats.h"

void serve_by_bench(const uint32_t *n, size_t n_size, struct served *ret)
{
	char arguments[768], list_of_n[128];
	int at = 0;

	for (size_t i = 0; i < n_size; i++)
		at += snprintf(
			list_of_n + at, sizeof(list_of_n) - (size_t)at, "%s%u", i ? "," : "", n[i]);
	snprintf(arguments, sizeof(arguments),
		"-m '%s' -t 2 -c %u -npp %u -ntg %u -npl %s --output-format jsonl",
		nsv_test_model(), n[n_size - 1] * (N_PROMPT + N_OUTPUT), N_PROMPT, N_OUTPUT,
		list_of_n);
	json_t *rows = nsv_peer_run("llama-batched-bench", arguments);
	if (json_array_size(rows) != n_size)
		die("llama-batched-bench failed");
	for (size_t i = 0; i < n_size; i++) {
		json_t *row = json_array_get(rows, i);
		double seconds = json_number_value(json_object_get(row, "t"));
		double prefill_s = json_number_value(json_object_get(row, "t_pp"));
		ret[i] = (struct served){n[i] * N_OUTPUT / seconds, prefill_s * 1e3};
	}
	json_decref(rows);
}

struct served serve_by_server(const struct nsv_peer_server *s, uint32_t n)
{
	static struct nsv_peer_stream streams[MAX_STREAM];
	double first_ms[MAX_STREAM];
	int32_t ids[N_PROMPT];
	uint64_t start = nsv_now_ns(), end = 0;

	for (uint32_t i = 0; i < n; i++) {
		draw_ids(ids, N_PROMPT);
		if (nsv_peer_stream_open(&streams[i], s, ids, N_PROMPT, N_OUTPUT) < 0)
			die("llama-server takes no request");
	}
	if (nsv_peer_streams_read(streams, n) < 0)
		die("llama-server does not answer");
	for (uint32_t i = 0; i < n; i++) {
		const struct nsv_peer_stream *st = &streams[i];
		if (st->n_event == 0)
			die("llama-server gave no token");
		first_ms[i] = (double)(st->event_ns[0] - start) / 1e6;
		end = nsv_max(end, st->event_ns[st->n_event - 1]);
	}
	double seconds = (double)(end - start) / 1e9;
	return (struct served){n * N_OUTPUT / seconds, nsv_median(first_ms, n)};
}

void measure_server_gaps(const struct nsv_peer_server *s, struct gaps *ret)
{
	static struct nsv_peer_stream st[2];
	static int32_t ids[LONG_PROMPT];

	draw_ids(ids, LONG_PROMPT);
	if (nsv_peer_stream_open(&st[0], s, ids, 16, N_ALONE + 60) < 0 ||
		nsv_peer_stream_read_until(&st[0], N_ALONE) < 0)
		die("llama-server does not stream");
	uint64_t sent_ns = nsv_now_ns();
	if (nsv_peer_stream_open(&st[1], s, ids, LONG_PROMPT, 1) < 0 ||
		nsv_peer_streams_read(st, 2) < 0 || st[1].n_event == 0)
		die("llama-server does not answer a long prompt");
	fill_gaps(ret, st[0].event_ns, st[0].n_event, sent_ns, st[1].event_ns[0]);
}
