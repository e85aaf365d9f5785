/* A daemon that is killed again and again, under a stand-in for the service manager, while
 * clients work.
 *
 *     kills N [MODEL [SEED]]
 *
 * Streams read one answer after another and compare it, byte by byte as it comes, with what the
 * same request gave when nothing disturbed it: text, tokens, log-probabilities, the end. Some ask
 * for several answers to a prompt, each of which is what it was alone. Beside them clients that
 * only come and go (so some are always in mid-hello), and clients that submit in bursts, cancel,
 * and have long prompts prepared. The daemon gets SIGKILL at random instants, some while the last
 * one is being replaced. Between two kills of daemons that serve there is a token, whosever: two
 * crashes under a step without one make the daemon give up what ran, which is another test.
 *
 * In the end everything is accounted for: an audit, blocks and sessions as at the start, the
 * store too. The counts come last; the exit status is 0 only when nothing was lost. */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "shm/clock.h"
#include "tests/tools/ask.h"
#include "tests/tools/proc.h"
#include "tests/tools/rnd.h"
#include "tests/tools/service.h"
#include "tests/tools/tiny.h"
#include "tests/tools/wait.h"

#define N_STREAM 16
#define N_VISITOR 2   /* hello and go */
#define N_SUBMITTER 2 /* bursts of short ones */
#define N_BURST 6
#define LONG_PROMPT 30000
#define NEXT_VAULT 2  /* the ends of one that may still be on its way to the store at first */
#define STALL_NS 120000000000u /* without a token for so long all is lost */

static const char *const prompts[] = {"The capital of France is", "Once upon a time",
	"Water boils at", "The three laws of motion say", "A poem about the sea:",
	"def fibonacci(n):", "In the year 1969", "The opposite of cold is"};

enum { N_PROMPT = NSV_ARRAY_LEN(prompts), N_KIND = 2 * N_PROMPT, MAX_BRANCH = 3 };

static struct nsv_test_service service;
static uint32_t n_token;
/* (N_KIND, MAX_BRANCH) Each answer of each kind of request undisturbed and alone. */
static struct nsv_answer (*alone)[MAX_BRANCH];
static struct nsv_answer brief; /* the short one */

/* What the threads count; atomic. */
static struct {
	uint32_t lost, n_answer, n_visit, n_burst, n_cancelled;
	uint64_t n_token, kill_ns, n_kill;
	uint64_t first_of; /* the kill after which some stream had a token already */
	bool stop;
} count;

/* Times from a kill to the next token, in microseconds. */
struct times {
	pthread_mutex_t lock;
	uint32_t *v;
	size_t n, cap;
};

static struct times any = {.lock = PTHREAD_MUTEX_INITIALIZER};
static struct times each = {.lock = PTHREAD_MUTEX_INITIALIZER};

#define load(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define add(p, n) __atomic_fetch_add((p), (n), __ATOMIC_ACQ_REL)

__attribute__((format(printf, 1, 2))) static void lose(const char *format, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	if (add(&count.lost, 1) < 20)
		fprintf(stderr, "lost: %s\n", text);
}

static void add_time(struct times *t, uint64_t ns)
{
	pthread_mutex_lock(&t->lock);
	if (t->n == t->cap) {
		t->cap = t->cap ? 2 * t->cap : 1024;
		t->v = realloc(t->v, t->cap * sizeof(*t->v));
	}
	t->v[t->n++] = (uint32_t)(ns / 1000);
	pthread_mutex_unlock(&t->lock);
}

static int compare_times(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static void print_times(struct times *t, const char *whose)
{
	if (t->n == 0)
		return;
	qsort(t->v, t->n, sizeof(*t->v), compare_times);
	printf("from a kill to the next token of %s: median %.0f ms, p99 %.0f ms, longest %.0f ms "
	       "(%zu times)\n",
		whose, t->v[t->n / 2] / 1e3, t->v[t->n * 99 / 100] / 1e3, t->v[t->n - 1] / 1e3,
		t->n);
}

/* ---- Requests */

/* Greedy, drawn, with log-probabilities, with penalties, with a stop string, of several answers. */
static struct nsv_client_params params_of(uint32_t kind)
{
	static const char *const stops[] = {" the"};
	struct nsv_client_params p;

	nsv_client_params_init(&p);
	p.max_tokens = n_token;
	p.flags = NSV_CLIENT_IGNORE_END | NSV_CLIENT_SEED;
	p.seed = 1000 + kind;
	p.temperature = kind % 2 ? 0.9f : 0;
	p.n_branch = kind % 4 == 1 ? MAX_BRANCH : 1;
	if (kind % 3 == 0) {
		p.flags |= NSV_CLIENT_LOGPROBS;
		p.n_logprob = 2;
	}
	if (kind % 5 == 1)
		p.repetition_penalty = 1.2f;
	if (kind % 7 == 3) {
		p.stop = stops;
		p.n_stop = 1;
	}
	return p;
}

static struct nsv_client_params brief_params(void)
{
	struct nsv_client_params p;

	nsv_client_params_init(&p);
	p.max_tokens = 2;
	return p;
}

/* Sessions of all sizes: with small logs the reader's pace is the stream's. */
static struct nsv_client *open_session(bool narrow)
{
	struct nsv_client_options o;
	struct nsv_client *client = NULL;
	char text[256] = "";

	nsv_client_options_init(&o);
	o.connect_timeout_ms = 60000;
	o.away_timeout_ms = 60000;
	if (narrow)
		o.n_token = 64;
	int ret = nsv_client_open(service.socket, &o, text, sizeof(text), &client);
	if (ret < 0)
		lose("a session cannot be opened: %s (%d)", text, ret);
	return client;
}

/* ---- Streams */

struct stream {
	struct nsv_client *client;
	uint64_t rng, kill_seen;
	size_t n_token, n_lp, text_len; /* of the answer so far */
};

static void note_token(struct stream *s)
{
	uint64_t n_kill = load(&count.n_kill), before = load(&count.first_of);
	uint64_t ns = nsv_now_ns() - load(&count.kill_ns);

	if (s->kill_seen == n_kill)
		return;
	s->kill_seen = n_kill;
	add_time(&each, ns);
	if (before < n_kill && __atomic_compare_exchange_n(&count.first_of, &before, n_kill, false,
				       __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		add_time(&any, ns);
}

static bool is_same(const void *a, const void *b, size_t len)
{
	return len == 0 || memcmp(a, b, len) == 0;
}

/* Is the chunk what comes next? */
static bool check_chunk(
	struct stream *s, const struct nsv_client_chunk *c, const struct nsv_answer *a)
{
	if (s->n_token + c->n_token > a->n_token || s->n_lp + c->n_lp > a->n_lp ||
		s->text_len + c->text_len > a->text_len)
		return false;
	bool same = is_same(c->tokens, a->tokens + s->n_token, c->n_token * sizeof(*c->tokens)) &&
		    is_same(c->lps, a->lps + s->n_lp, c->n_lp * sizeof(*c->lps)) &&
		    is_same(c->text, a->text + s->text_len, c->text_len);
	s->n_token += c->n_token;
	s->n_lp += c->n_lp;
	s->text_len += c->text_len;
	return same;
}

static void check_end(
	const struct stream *s, const struct nsv_request *r, const struct nsv_answer *a)
{
	struct nsv_client_result result = {.size = sizeof(result)};

	if (nsv_request_result(r, &result) < 0 || result.code || result.finish != a->result.finish)
		lose("an answer ended %u, code %u: %s", result.finish, result.code, result.text);
	else if (s->n_token != a->n_token || s->text_len != a->text_len || s->n_lp != a->n_lp)
		lose("an answer has %zu tokens and %zu bytes, not %zu and %zu", s->n_token,
			s->text_len, a->n_token, a->text_len);
	else
		add(&count.n_answer, 1);
}

static void read_answer(struct stream *s, struct nsv_request *r, uint32_t kind, uint32_t branch)
{
	const struct nsv_answer *a = &alone[kind][branch];
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	bool same = true;
	int ret = 0;

	s->n_token = s->n_lp = s->text_len = 0;
	while (same && (ret = nsv_request_next(r, -1, &chunk)) > 0) {
		if (chunk.n_token)
			note_token(s);
		add(&count.n_token, chunk.n_token);
		same = check_chunk(s, &chunk, a);
	}
	if (!same)
		lose("kind %u, answer %u differs before token %zu, byte %zu", kind, branch,
			s->n_token, s->text_len);
	else if (ret < 0)
		lose("kind %u, answer %u: %s (%d)", kind, branch, nsv_client_error(s->client), ret);
	else
		check_end(s, r, a);
}

static void read_answers(struct stream *s, uint32_t kind)
{
	const char *prompt = prompts[kind % N_PROMPT];
	struct nsv_client_params p = params_of(kind);
	struct nsv_request *r[MAX_BRANCH];
	int ret = nsv_client_submit_text(s->client, prompt, strlen(prompt), &p, &r[0]);

	if (ret < 0) {
		lose("a submission: %s (%d)", nsv_client_error(s->client), ret);
		return;
	}
	for (uint32_t b = 1; b < p.n_branch; b++)
		r[b] = nsv_request_answer(r[0], b);
	for (uint32_t b = 0; b < p.n_branch; b++) {
		read_answer(s, r[b], kind, b);
		nsv_request_free(r[b]);
	}
}

static void *run_stream(void *arg)
{
	struct stream s = {.rng = (uint64_t)(uintptr_t)arg * 7919 + 1};
	bool narrow = (uintptr_t)arg % 2;

	while (!load(&count.stop) && load(&count.lost) == 0) {
		if (!s.client)
			s.client = open_session(narrow);
		if (!s.client)
			break;
		read_answers(&s, t_next_below(&s.rng, N_KIND));
		if (t_next_below(&s.rng, 20) == 0) { /* most sessions live through many daemons */
			nsv_client_close(s.client);
			s.client = NULL;
		}
	}
	nsv_client_close(s.client);
	return NULL;
}

/* ---- The others */

static void *run_visitor(void *arg)
{
	const struct timespec pause = {.tv_nsec = 5000000};
	(void)arg;

	while (!load(&count.stop) && load(&count.lost) == 0) {
		struct nsv_client *client = open_session(true);
		if (!client)
			break;
		if (nsv_client_ping(client, 60000) < 0)
			lose("a ping: %s", nsv_client_error(client));
		nsv_client_close(client);
		add(&count.n_visit, 1);
		nanosleep(&pause, NULL);
	}
	return NULL;
}

/* The burst's requests: a long one first, whose preparation holds the ring's head back. */
static void submit_burst(struct nsv_client *client, char *text, struct nsv_request **r)
{
	struct nsv_client_params p = brief_params();
	int ret = nsv_client_tokenize(client, text, LONG_PROMPT, 0, &r[0]);

	for (int i = 1; ret == 0 && i < N_BURST; i++)
		ret = nsv_client_submit_text(client, prompts[0], strlen(prompts[0]), &p, &r[i]);
	if (ret < 0)
		lose("a burst: %s (%d)", nsv_client_error(client), ret);
}

static void check_brief(struct nsv_client *client, struct nsv_request *r, bool cancelled)
{
	struct nsv_client_chunk c = {.size = sizeof(c)};
	struct nsv_client_result result = {.size = sizeof(result)};
	int ret = nsv_request_collect(r, -1, &c);

	if (ret < 0) {
		lose("one of a burst: %s (%d)", nsv_client_error(client), ret);
		return;
	}
	nsv_request_result(r, &result);
	bool whole = result.finish != NSV_CLIENT_FINISH_CANCEL;
	if (result.code || (!whole && !cancelled) || (whole && c.n_token != brief.n_token) ||
		!is_same(c.tokens, brief.tokens, c.n_token * sizeof(*c.tokens)))
		lose("one of a burst: finish %u, code %u, %zu tokens: %s", result.finish,
			result.code, c.n_token, result.text);
	add(&count.n_cancelled, !whole);
}

static void *run_submitter(void *arg)
{
	uint64_t rng = (uint64_t)(uintptr_t)arg * 104729 + 5;
	char *text = malloc(LONG_PROMPT);
	struct nsv_client *client = open_session(true);

	memset(text, 'a', LONG_PROMPT);
	while (client && !load(&count.stop) && load(&count.lost) == 0) {
		struct nsv_request *r[N_BURST] = {NULL};
		bool cancelled[N_BURST] = {false};
		submit_burst(client, text, r);
		for (int i = 1; i < N_BURST && r[i]; i++)
			if ((cancelled[i] = t_next_below(&rng, 4) == 0))
				nsv_request_cancel(r[i]);
		for (int i = N_BURST - 1; i > 0; i--) {
			if (r[i])
				check_brief(client, r[i], cancelled[i]);
			nsv_request_free(r[i]);
		}
		struct nsv_client_chunk c = {.size = sizeof(c)};
		if (r[0] && (nsv_request_collect(r[0], -1, &c) < 0 || c.n_token == 0))
			lose("a tokenization: %s", nsv_client_error(client));
		nsv_request_free(r[0]);
		add(&count.n_burst, 1);
	}
	nsv_client_close(client);
	free(text);
	return NULL;
}

/* ---- The killer */

static void sleep_ns(uint64_t ns)
{
	const struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};

	nanosleep(&t, NULL);
}

/* The daemon that runs has sampled a token. */
static bool wait_for_token(struct nsv_client *client)
{
	uint64_t start = nsv_now_ns();

	while (nsv_ask_status(client, "counters.output_tokens") < 1) {
		if (load(&count.lost) || nsv_now_ns() - start > STALL_NS) {
			lose("no token came after kill %llu",
				(unsigned long long)load(&count.n_kill));
			return false;
		}
		sleep_ns(5000000);
	}
	return true;
}

/* The kill counts once another daemon runs: what comes then is not what the last one left. */
static void kill_once(void)
{
	__atomic_store_n(&count.kill_ns, nsv_now_ns(), __ATOMIC_RELEASE);
	nsv_test_service_kill(&service, SIGKILL);
	add(&count.n_kill, 1);
}

/* Has the daemon that runs not come to serve yet? */
static bool is_starting(unsigned int n_took_over)
{
	return nsv_test_service_logged(&service, "took over") == n_took_over;
}

static uint32_t kill_often(struct nsv_client *client, uint32_t n)
{
	uint32_t n_kill = 0;

	while (n_kill < n) {
		if (!wait_for_token(client))
			break;
		kill(nsv_test_service_pid(&service), SIGUSR1); /* an audit in the midst of it */
		sleep_ns((uint64_t)t_below(250) * 1000000u + t_below(1000000));
		unsigned int n_took_over = nsv_test_service_logged(&service, "took over");
		kill_once();
		n_kill++;
		if (n_kill < n && t_below(4) == 0) { /* the next one dies as it starts */
			sleep_ns((uint64_t)t_below(300) * 1000000u);
			if (is_starting(n_took_over)) {
				kill_once();
				n_kill++;
			}
		}
		if (n_kill % 100 == 0)
			fprintf(stderr, "%u kills, %u answers\n", n_kill, load(&count.n_answer));
	}
	wait_for_token(client);
	return n_kill;
}

/* ---- The whole */

static void run_alone(struct nsv_client *client)
{
	struct nsv_client_params p = brief_params();

	alone = calloc(N_KIND, sizeof(*alone));
	for (uint32_t k = 0; k < N_KIND; k++) {
		struct nsv_client_params q = params_of(k);
		uint32_t n = q.n_branch;
		q.n_branch = 1;
		for (; q.branch < n; q.branch++) {
			struct nsv_answer *a = &alone[k][q.branch];
			nsv_ask_text(client, prompts[k % N_PROMPT], &q, a);
			if (a->ret < 0)
				lose("undisturbed: %s", a->reason);
		}
	}
	nsv_ask_text(client, prompts[0], &p, &brief);
}

static void work(struct nsv_client *client, uint32_t n)
{
	enum { N = N_STREAM + N_VISITOR + N_SUBMITTER };
	pthread_t threads[N];

	for (uintptr_t i = 0; i < N; i++)
		pthread_create(&threads[i], NULL,
			i < N_STREAM			? run_stream
			: i < N_STREAM + N_VISITOR ? run_visitor
						   : run_submitter,
			(void *)(i + 1));
	sleep_ns(200000000);
	uint32_t n_kill = kill_often(client, n);
	if (n_kill < n)
		lose("%u kills of %u", n_kill, n);
	__atomic_store_n(&count.stop, true, __ATOMIC_RELEASE);
	for (size_t i = 0; i < N; i++)
		pthread_join(threads[i], NULL);
}

/* A value of the status is what it was, in the end: ends are acknowledged and vaults emptied in
 * their own time. */
static void check_status(struct nsv_client *client, const char *name, long long value)
{
	if (!nsv_ask_status_until(client, name, value))
		lose("%s is %lld in the end, %lld at first", name, nsv_ask_status(client, name),
			value);
}

static void check_accounts(struct nsv_client *client, long long blocks, long n_stored)
{
	unsigned int sound = nsv_test_service_logged(&service, "all accounted for");

	check_status(client, "blocks.free", blocks);
	check_status(client, "requests.running", 0);
	check_status(client, "requests.queued", 0);
	check_status(client, "counters.dropped_sessions", 0);
	kill(nsv_test_service_pid(&service), SIGUSR1);
	if (!NSV_WAIT_FOR(nsv_test_service_logged(&service, "all accounted for") > sound))
		lose("no audit in the end");
	if (nsv_test_service_logged(&service, "audit:") !=
		nsv_test_service_logged(&service, "all accounted for"))
		lose("an audit found something");
	if (nsv_test_service_logged(&service, "cannot be taken over"))
		lose("a session was not taken over");
	if (!NSV_WAIT_FOR(nsv_proc_fds(service.manager) <= n_stored + NEXT_VAULT))
		lose("the store has %ld descriptors, %ld at first", nsv_proc_fds(service.manager),
			n_stored);
}

static void print_counts(uint32_t n)
{
	print_times(&any, "any stream");
	print_times(&each, "each stream");
	printf("%u kills: %u answers of %u streams (%llu tokens), %u hellos, %u bursts of %u "
	       "(%u cancelled), %u lost\n",
		n, count.n_answer, N_STREAM, (unsigned long long)count.n_token, count.n_visit,
		count.n_burst, N_BURST, count.n_cancelled, count.lost);
}

static int run(uint32_t n, const char *model, bool tiny)
{
	const char *extra[] = {"--kv-blocks", tiny ? "160" : "64", NULL};

	n_token = tiny ? 300 : 40;
	if (nsv_test_service_start(&service, model, extra) < 0) {
		fprintf(stderr, "kills: the daemon does not start: see %s\n", service.log);
		return 1;
	}
	struct nsv_client *client = open_session(false);
	if (!client)
		return 1;
	long n_stored = nsv_proc_fds(service.manager);
	long long blocks = nsv_ask_status(client, "blocks.free");
	run_alone(client);
	if (count.lost == 0)
		work(client, n);
	check_accounts(client, blocks, n_stored);
	nsv_client_close(client);
	if (count.lost)
		fprintf(stderr, "the log: %s\n", service.log);
	else if (nsv_test_service_stop(&service) != 0)
		lose("the stand-in for the service manager failed");
	print_counts(n);
	free(alone);
	free(any.v);
	free(each.v);
	return count.lost != 0;
}

int main(int argc, char **argv)
{
	const char *model = argc > 2 && *argv[2] ? argv[2] : nsv_test_model();
	char path[64];

	if (argc < 2 || argc > 4 || atoi(argv[1]) < 1 || !model) {
		fprintf(stderr, "usage: kills N [MODEL [SEED]]\nMODEL: a file, or \"tiny\"; the "
				"default is the model of `make model`\n");
		return 2;
	}
	if (argc > 3)
		setenv("NANOSERVE_TEST_SEED", argv[3], 1);
	t_seed();
	bool tiny = strcmp(model, "tiny") == 0;
	if (tiny)
		nsv_tiny_model(path, sizeof(path));
	int ret = run((uint32_t)atoi(argv[1]), tiny ? path : model, tiny);
	if (tiny)
		unlink(path);
	return ret;
}
