/* A trie of siblings and children in one array; the first byte goes by a table. */
#include "daemon/tok/special.h"

int nsv_special_init(struct nsv_special *s, size_t len)
{
	if (len >= UINT32_MAX)
		return -ENOMEM;
	*s = (struct nsv_special){.n = 1};
	s->node = calloc(len + 1, sizeof(*s->node));
	return s->node ? 0 : -ENOMEM;
}

void nsv_special_deinit(struct nsv_special *s)
{
	free(s->node);
	s->node = NULL;
}

static uint32_t find_sibling(const struct nsv_special *s, uint32_t at, unsigned char byte)
{
	while (at && s->node[at].byte != byte)
		at = s->node[at].sibling;
	return at;
}

/* The node of a byte in a list of siblings, made if it is not there. */
static uint32_t get_sibling(struct nsv_special *s, uint32_t *head, unsigned char byte)
{
	uint32_t at = find_sibling(s, *head, byte);

	if (at)
		return at;
	at = s->n++;
	s->node[at] = (struct nsv_special_node){.sibling = *head, .id = -1, .byte = byte};
	*head = at;
	return at;
}

void nsv_special_add(struct nsv_special *s, struct nsv_str text, int32_t id, bool control)
{
	uint32_t *head = &s->root[(unsigned char)text.p[0]];
	uint32_t at = 0;

	for (size_t i = 0; i < text.len; i++) {
		at = get_sibling(s, head, (unsigned char)text.p[i]);
		head = &s->node[at].child;
	}
	if (s->node[at].id >= 0)
		return;
	s->node[at].id = id;
	s->node[at].control = control;
}

size_t nsv_special_match(const struct nsv_special *s, const char *text, size_t len,
	size_t control_len, int32_t *ret_id)
{
	uint32_t at = len ? s->root[(unsigned char)text[0]] : 0;
	size_t found = 0;

	for (size_t i = 0; at; i++) {
		const struct nsv_special_node *node = &s->node[at];

		if (node->id >= 0 && (!node->control || i < control_len)) {
			found = i + 1;
			*ret_id = node->id;
		}
		at = i + 1 < len ? find_sibling(s, node->child, (unsigned char)text[i + 1]) : 0;
	}
	return found;
}
