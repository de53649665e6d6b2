/* Says where an answer of a lookup lies, so that answers of two processes can be compared although their libraries lie elsewhere. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define UNTOUCHED ((void *)where) /* what a pointer holds before a call that may leave it alone */

/* where writes "null", "untouched", "stub NAME" for one of the shim's functions, or "FILE+offset". */
static void where(void *p, char *into, size_t size)
{
	Dl_info info;
	const char *file;

	if (!p || p == UNTOUCHED) {
		snprintf(into, size, "%s", p ? "untouched" : "null");
		return;
	}
	if (!dladdr(p, &info)) {
		snprintf(into, size, "nowhere");
		return;
	}
	file = strrchr(info.dli_fname, '/') ? strrchr(info.dli_fname, '/') + 1 : info.dli_fname;
	if (!strncmp(file, "libgpufault", 11)) {
		int exact = info.dli_saddr == p && info.dli_sname;
		snprintf(into, size, exact ? "stub %s" : "inside %s", exact ? info.dli_sname : file);
		return;
	}
	snprintf(into, size, "%s+%#lx", file, (unsigned long)((char *)p - (char *)info.dli_fbase));
}
