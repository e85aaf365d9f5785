#include "daemon/tok/nfc.h"

#include <utf8proc.h>

#include "daemon/tok/utf8.h"

static bool is_ascii(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)text[i] >= 0x80)
			return false;
	return true;
}

static int check_marks(const char *text, size_t len, struct nsv_err *err)
{
	size_t n_mark = 0, n;

	for (size_t i = 0; i < len; i += n) {
		int32_t c = nsv_utf8_decode(text + i, &n);

		n_mark = utf8proc_get_property(c)->combining_class ? n_mark + 1 : 0;
		if (n_mark > NSV_NFC_MAX_MARKS)
			return nsv_fail(err, -ENOTSUP,
				"the text has more than %d combining marks in a row",
				NSV_NFC_MAX_MARKS);
	}
	return 0;
}

int nsv_nfc(const char *text, size_t len, char **ret_text, size_t *ret_len, struct nsv_err *err)
{
	utf8proc_uint8_t *out = NULL;

	if (is_ascii(text, len)) {
		*ret_text = NULL;
		return 0;
	}
	int ret = check_marks(text, len, err);
	if (ret < 0)
		return ret;
	utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)len,
		&out, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
	if (n < 0)
		return -ENOMEM;
	*ret_text = (char *)out;
	*ret_len = (size_t)n;
	return 0;
}
