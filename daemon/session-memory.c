/* A session's regions, made at its hello and given back at its end. The kernel takes 0.1 s for
 * 1 GiB, either way: where they are large a worker waits for it, and the io thread serves others
 * meanwhile. Its order is kept: what was to be given back is free before the next ones are made. */
#include <sys/stat.h>

#include "daemon/memory.h"
#include "daemon/session.h"

/* Small ones cost less than the way to the worker and back. */
#define INLINE_LEN (4u << 20)

static void build(struct nsv_session *se)
{
	struct nsv_err err;

	se->built = nsv_channel_allocate(&se->ch, &err);
	se->memory_msg.kind = NSV_MSG_BUILT;
}

/* A message in a vault may keep the descriptors for a while, and a client that does not go its
 * mappings for ever, but not the memory: it is the daemon's, and nobody's quota has it any more. */
static void tear_down(struct nsv_session *se)
{
	if (!se->is_left)
		nsv_channel_empty(&se->ch);
	nsv_channel_deinit(&se->ch);
	se->memory_msg.kind = NSV_MSG_TORN_DOWN;
}

void nsv_session_work_on_memory(struct nsv_msg *msg, const void *arg)
{
	struct nsv_session *se = NSV_CONTAINER_OF(msg, struct nsv_session, memory_msg);
	(void)arg;

	if (msg->kind == NSV_MSG_BUILD)
		build(se);
	else
		tear_down(se);
}

/* true: it was done at once; false: the answer comes through the server's inbox. */
static bool ask(struct nsv_session *se, enum nsv_msg_kind kind)
{
	struct nsv_worker *w = &se->server->memory_worker;

	se->memory_msg.kind = kind;
	if (se->memory > INLINE_LEN && w->started) {
		nsv_mailbox_put(&w->inbox, &se->memory_msg);
		return false;
	}
	nsv_session_work_on_memory(&se->memory_msg, NULL);
	return true;
}

void nsv_session_build(struct nsv_session *se)
{
	se->is_building = true;
	if (ask(se, NSV_MSG_BUILD))
		nsv_session_built(se);
}

void nsv_session_tear_down(struct nsv_session *se)
{
	nsv_channel_unguard(&se->ch);
	if (ask(se, NSV_MSG_TEAR_DOWN))
		nsv_session_torn_down(se);
}

/* ---- What is left */

/* What the daemon itself may take at any time: for its threads and tables, and for the one prompt
 * that the worker has, of which each byte takes about 40 while its words are merged. */
#define OWN_LEN (16u << 20)
#define WORK_A_BYTE 40u

/* What it may take at any time though it was asked for: pages that the worker has not got yet, or
 * that the client has punched out of `up`. */
static uint64_t owed_to(const struct nsv_session *se)
{
	struct stat st;

	if (se->is_building)
		return se->memory;
	if (se->ch.up_region.fd < 0 || fstat(se->ch.up_region.fd, &st) < 0)
		return 0;
	uint64_t there = (uint64_t)st.st_blocks * 512;
	return se->ch.up_region.len - nsv_min_u64(se->ch.up_region.len, there);
}

uint64_t nsv_session_memory_left(const struct nsv_memory *m)
{
	const struct nsv_server *s = NSV_CONTAINER_OF(m, struct nsv_server, memory);
	uint64_t there = nsv_memory_available();
	uint64_t kept = OWN_LEN + WORK_A_BYTE * (uint64_t)s->config->limits.prompt_bytes;

	for (const struct nsv_session *se = s->sessions; se; se = se->next)
		kept += owed_to(se);
	return there - nsv_min_u64(there, kept);
}
