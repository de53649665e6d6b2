/* The mappings of the process, as the kernel lists them. The list includes the objects of all namespaces, and reading it takes no lock. */
#include "shim.h"

static uint64_t hexadecimal(const char **p)
{
	uint64_t n = 0;

	for (;; ++*p) {
		char c = **p;

		if (c >= '0' && c <= '9')
			n = n * 16 + (uint64_t)(c - '0');
		else if (c >= 'a' && c <= 'f')
			n = n * 16 + (uint64_t)(c - 'a' + 10);
		else
			return n;
	}
}

/* Parses a line: FROM-TO MODE OFFSET DEVICE INODE PATH, with blanks before the path. */
static void parse(const char *p, struct gf_map *m)
{
	m->from = hexadecimal(&p);
	p += *p == '-';
	m->to = hexadecimal(&p);
	p += *p == ' ';
	m->protection = 0;
	for (int i = 0; i < 3 && *p; i++, p++)
		m->protection |= (*p != '-') << i;
	while (*p && *p++ != ' ') /* mode */
		;
	m->offset = hexadecimal(&p);
	while (*p && *p != '/')
		p++;
	m->path = p;
}

/* Calls f for each mapping, in the order of addresses, until it returns not 0. */
void gf_each_map(int (*f)(const struct gf_map *, void *), void *arg)
{
	char block[1024], line[512];
	size_t n = 0;
	int fd = gf_open("/proc/self/maps", GF_O_NONBLOCK), done = 0;
	long got;

	if (fd < 0)
		return;
	while (!done && (got = gf_sys(GF_READ, fd, (long)block, sizeof block, 0, 0, 0)) > 0)
		for (long i = 0; i < got && !done; i++) {
			struct gf_map m;

			if (block[i] != '\n') {
				if (n < sizeof line - 1)
					line[n++] = block[i];
				continue;
			}
			line[n] = 0;
			n = 0;
			parse(line, &m);
			done = f(&m, arg);
		}
	gf_close(fd);
}
