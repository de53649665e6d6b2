// cuGetProcAddress with the answers of the real driver (535.309.01 and 550.163.01, asked without a GPU):
//
//	                            _v2                              first version
//	unknown name                0, *address = NULL, status 1     500, *address untouched
//	version too low             0, *address = NULL, status 2     500, *address untouched
//	unknown flag                1, *address untouched            1, *address untouched
//
// The status pointer may be NULL. It works before cuInit. A name with a suffix (_v2, _ptsz) is unknown, as is the empty one; a version is
// unsigned, and any that is high enough is found.
#include "fake.h"
#include "generated.h"
#include <string.h>

enum { FOUND = 0, SYMBOL_NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2 };

static int look_up(const char *name, int version, uint64_t flags, void **address)
{
	int known = 0, found = 0;
	for (const struct symbol *s = fake_symbols; s->name; s++) {
		if (strcmp(s->name, name)) continue;
		known = 1;
		if ((unsigned)s->since <= (unsigned)version && s->since > found && (s->streams & (flags & 2 ? 2 : 1))) {
			found = s->since;
			*address = s->address;
		}
	}
	return found ? FOUND : known ? VERSION_NOT_SUFFICIENT : SYMBOL_NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, int *status)
{
	if (!name || !address || flags > 3) return INVALID_VALUE;
	*address = NULL;
	int outcome = look_up(name, version, flags, address);
	if (status) *status = outcome;
	return OK;
}

EXPORT CUresult cuGetProcAddress(const char *name, void **address, int version, uint64_t flags)
{
	if (!name || !address || flags > 3) return INVALID_VALUE;
	void *found = NULL;
	if (look_up(name, version, flags, &found) != FOUND) return NOT_FOUND;
	*address = found;
	return OK;
}
