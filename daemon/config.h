/* What the daemon is told: the command line over a JSON file over defaults. Unknown keys and values
 * out of range are errors that name the key; nothing is ignored. */
#ifndef NSV_DAEMON_CONFIG_H
#define NSV_DAEMON_CONFIG_H

#include "daemon/policy.h"
#include "shm/base.h"

#define NSV_CONFIG_MAX_REQUESTS 65536u /* the most that max_requests may be */

struct nsv_limits { /* a user's, all sessions together, unless it says else */
	uint32_t sessions;
	uint32_t requests;        /* 0 only while parsing: max_requests */
	uint32_t descriptors;     /* sockets and regions that the daemon holds open for it */
	uint32_t memory_mib;      /* session regions, and what requests hold */
	uint32_t prompt_bytes;    /* of one prompt */
	uint32_t session_slots;   /* of one session */
	uint32_t hello_ms;        /* a connection without a hello, or a vault, is closed */
};

struct nsv_config {
	char *model;       /* path */
	char *socket;      /* path; NULL: the service manager's */
	char *backend;     /* name or "auto" */
	char *kv_dtype;    /* of K and V: name or "auto" */
	uint32_t kv_blocks;    /* 0: from memory */
	uint64_t kv_memory;    /* bytes of the KV pool; 0: from free memory */
	uint32_t swap_blocks;  /* of the host tier; 0: none */
	uint32_t threads;      /* 0: one a CPU */
	uint32_t batch_tokens; /* rows a step at most */
	uint32_t mixed_tokens; /* of them for prompts, beside running streams */
	uint32_t max_requests; /* in the daemon at once */
	uint32_t run_ahead;    /* steps under way at once */
	uint32_t spin_us;      /* how long the io thread looks before it sleeps */
	bool verbose;
	bool no_prefix_cache;
	bool share_prefixes;   /* the prefix cache of all users is one */
	bool no_numa;          /* all memory is taken as equally near */
	struct nsv_policy policy; /* who may connect */
	struct nsv_limits limits;
};

enum { NSV_CONFIG_RUN = 0, NSV_CONFIG_EXIT = 1 };

/* NSV_CONFIG_RUN, NSV_CONFIG_EXIT (help or version was printed), or -EINVAL and the reason. */
int nsv_config_init(struct nsv_config *c, int argc, char **argv, struct nsv_err *err);
void nsv_config_deinit(struct nsv_config *c);
/* One JSON text into *c: the parser alone, for tests and fuzzing. */
int nsv_config_parse(struct nsv_config *c, const char *text, size_t len, struct nsv_err *err);

#endif
