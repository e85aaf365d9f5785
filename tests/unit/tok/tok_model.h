/* A tokenizer of a model file that a test writes: only its vocabulary is in it. */
#ifndef NSV_TESTS_TOK_MODEL_H
#define NSV_TESTS_TOK_MODEL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/tok/tok.h"
#include "tests/tools/gguf_write.h"

struct model {
	uint8_t *p;
	struct nsv_gguf *g;
	struct nsv_tok *tok;
};

/* 0, or the error of the tokenizer with its sentence in err. */
static int open_model(struct nsv_gguf_writer *w, struct model *m, struct nsv_err *err)
{
	size_t len;

	*m = (struct model){0};
	m->p = nsv_gguf_finish(w, &len);
	if (nsv_gguf_parse(m->p, len, &m->g, err) < 0)
		fail_msg("%s", err->text);
	return nsv_tok_new(m->g, &m->tok, err);
}

static void close_model(struct model *m)
{
	nsv_tok_free(m->tok);
	nsv_gguf_close(m->g);
	free(m->p);
}

#endif
