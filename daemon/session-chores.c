/* What takes its time at a session's beginning and at its end is put off, and done a little of in
 * each turn of the loop, users taking turns: however many connect or go at once, those who stay are
 * served meanwhile, and a user waits for no more than its own. */
#include "daemon/session.h"
#include "shm/clock.h"

#define CHORES_NS 200000u /* in a turn; one that has begun ends */

static void queue_user(struct nsv_server *s, struct nsv_user *user)
{
	user->next_busy = NULL;
	*s->busy_end = user;
	s->busy_end = &user->next_busy;
}

void nsv_session_put_off(struct nsv_session *se)
{
	struct nsv_user *user = se->user;

	if (se->is_put_off)
		return;
	if (!user->chores)
		queue_user(se->server, user);
	se->is_put_off = true;
	se->next_chore = NULL;
	*user->chores_end = se;
	user->chores_end = &se->next_chore;
}

/* The oldest of the user whose turn it is. The chore may be the last thing that is known of both. */
static struct nsv_session *take(struct nsv_server *s)
{
	struct nsv_user *user = s->busy;
	struct nsv_session *se = user->chores;

	s->busy = user->next_busy;
	if (!s->busy)
		s->busy_end = &s->busy;
	user->chores = se->next_chore;
	if (user->chores)
		queue_user(s, user);
	else
		user->chores_end = &user->chores;
	se->is_put_off = false;
	return se;
}

void nsv_session_do_chores(struct nsv_server *s)
{
	uint64_t until_ns = s->busy ? nsv_now_ns() + CHORES_NS : 0;

	while (s->busy) {
		nsv_session_do_chore(take(s));
		if (nsv_now_ns() >= until_ns)
			break;
	}
	if (s->some_ended)
		nsv_session_ask_again(s);
}
