/* One line on stderr, built without stdio and written at once. */
#include "shim.h"

void gf_say(struct gf_line *l, const char *text)
{
	while (*text && l->n < sizeof l->text - 1)
		l->text[l->n++] = *text++;
}

void gf_say_number(struct gf_line *l, uint64_t n)
{
	char digits[21], *p = digits + 20;

	*p = 0;
	do
		*--p = (char)('0' + n % 10);
	while (n /= 10);
	gf_say(l, p);
}

void gf_say_end(struct gf_line *l)
{
	l->text[l->n++] = '\n';
	gf_sys(GF_WRITE, 2, (long)l->text, (long)l->n, 0, 0, 0);
}
