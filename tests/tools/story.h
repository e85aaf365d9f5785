/* Random requests that run together, and again alone, and must say the same: prompts of ids,
 * sampling of every kind, several answers, forks and cancels at random moments.
 *
 * A fork's solitary run is a SUBMIT whose prompt is the target's prompt and output up to the fork,
 * with the fork's branch. So stories that may be forked have no parameter that tells the prompt
 * from the output: no presence or frequency penalty, and no stop string that may lie across. */
#ifndef NSV_TESTS_TOOLS_STORY_H
#define NSV_TESTS_TOOLS_STORY_H

#include "tests/tools/ask.h"

#define NSV_STORY_PROMPT 512
#define NSV_STORY_LIST 8
#define NSV_MAX_STREAM 512

/* What stories are drawn from. */
struct nsv_story_range {
	int32_t first_id, n_vocab; /* prompts have ids first_id .. n_vocab - 1 */
	uint32_t max_prompt, max_output, max_branch;
	/* Where answers shall be long: the least max_tokens [1], of which half are min_tokens, and
	 * the length of stop strings, since short ones are met at once [0: 1 or 2]. */
	uint32_t min_output, stop_len;
};

struct nsv_story {
	uint32_t n_prompt;
	int32_t prompt[NSV_STORY_PROMPT];
	struct nsv_client_params params;
	bool may_fork;
	const char *stop[2];
	char stop_text[2][4];
	int32_t ban[NSV_STORY_LIST], stop_id[NSV_STORY_LIST];
	struct nsv_client_bias bias[NSV_STORY_LIST];
};

/* One answer of a story, or a fork of one. */
struct nsv_stream {
	const struct nsv_story *story;
	uint32_t branch, number;	 /* number: of the story's answers */
	const struct nsv_stream *target; /* of a fork */
	uint64_t fork_text, fork_token;
	bool cancelled, ended;
	uint32_t n_lag; /* turns that its reader stays away for */
	struct nsv_request *request;
	struct nsv_answer answer; /* its own output; of a fork without the target's */
};

/* Several streams of one client. Zeros to begin with. */
struct nsv_stage {
	struct nsv_client *client;
	uint32_t n_slot;
	/* The chance, one in so many each time that something has come, that some stream is forked
	 * or cancelled; 0: never. */
	uint32_t fork_one_in, cancel_one_in;
	/* Likewise that the reader of what has come stays away for a while, so that its request
	 * pauses at a full log, and is the first to be pushed out, however old it is. */
	uint32_t lag_one_in;
	struct nsv_stream *streams[NSV_MAX_STREAM];
	uint32_t n, n_live, n_lagging;
	/* Counts, never reset. */
	uint64_t n_answer, n_fork, n_late_fork, n_cancel, n_token, n_lp, n_preempt, n_cached;
	uint64_t n_compared, n_wrong;
	uint64_t n_ran, n_pushed_out; /* of those compared: had output; and were preempted */
};

void nsv_story_draw(struct nsv_story *s, const struct nsv_story_range *range);
/* A story keeps pointers into itself: copies are made with this. */
void nsv_story_copy(struct nsv_story *to, const struct nsv_story *from);

/* Asks for a story's answers; false: there are no slots for them now. The story stays the caller's
 * until nsv_stage_clear. */
bool nsv_stage_add(struct nsv_stage *g, const struct nsv_story *story);
/* Reads what comes for at most `ms`, forking and cancelling; false: nothing is live. */
bool nsv_stage_turn(struct nsv_stage *g, int ms);
/* Compares every stream with its solitary run, asked of `alone`, and prints what differs. */
void nsv_stage_compare(struct nsv_stage *g, struct nsv_client *alone);
/* A line of the counts. */
void nsv_stage_print(const struct nsv_stage *g, FILE *out);
/* Frees all streams, which have ended. */
void nsv_stage_clear(struct nsv_stage *g);

#endif
