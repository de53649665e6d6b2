/* The parts without a machine: validation, hashes, globs, names, the trigger. Included by the shim and, with sanitizers, by pure_test.c. */
#ifndef GF_PURE_H
#define GF_PURE_H

#include "state.h"

static inline uint64_t gf_fnv(const void *bytes, size_t n, uint64_t h)
{
	for (const uint8_t *p = bytes; n--; p++)
		h = (h ^ *p) * 0x100000001b3;
	return h;
}
#define GF_FNV_START 0xcbf29ce484222325u

/* Whether the n bytes are a whole state file of our version. Texts must end inside their fields, so that nobody reads past them. */
static inline int gf_valid(const struct gf_state *s, size_t n)
{
	static const uint8_t zero[8];
	uint64_t h;

	if (n != sizeof *s || s->version != 1 || s->size != sizeof *s || gf_fnv(s->magic, 8, GF_FNV_START) != gf_fnv("GPUFAULT", 8, GF_FNV_START))
		return 0;
	h = gf_fnv(s, offsetof(struct gf_state, checksum), GF_FNV_START);
	h = gf_fnv(zero, 8, h);
	h = gf_fnv(&s->generation, sizeof *s - offsetof(struct gf_state, generation), h);
	if (h != s->checksum || s->node_count > 64 || s->surface > 1)
		return 0;
	for (size_t i = 0; i < sizeof s->zero; i++)
		if (s->zero[i])
			return 0;
	return !s->run[sizeof s->run - 1] && !s->process[sizeof s->process - 1] && !s->function[sizeof s->function - 1];
}

/* One [set] at p (behind the '['): whether c is in it; *end is behind the ']', or 0 when the set is not closed. */
static inline int gf_set(const char *p, char c, const char **end)
{
	int not = *p == '!' || *p == '^', in = 0, first = 1;

	for (p += not; *p && (first || *p != ']'); first = 0) {
		char low = *p++, high = low;

		if (*p == '-' && p[1] && p[1] != ']') {
			high = p[1];
			p += 2;
		}
		in |= (unsigned char)low <= (unsigned char)c && (unsigned char)c <= (unsigned char)high;
	}
	*end = *p ? p + 1 : 0;
	return in != not;
}

/* Shell glob of the whole name: * ? [a-z] [!a]. An unclosed '[' stands for itself. Linear in the name for each '*'. */
static inline int gf_glob(const char *p, const char *s)
{
	const char *star = 0, *back = 0, *end;

	for (;;) {
		int ok = 0;

		if (*p == '*') {
			star = ++p;
			back = s;
			continue;
		}
		if (!*s && !*p)
			return 1;
		if (*s && *p) {
			ok = *p == '?' || *p == *s;
			end = p + 1;
			if (*p == '[') {
				int in = gf_set(p + 1, *s, &end);

				ok = end ? in : *s == '[';
				end = end ? end : p + 1;
			}
		}
		if (ok) {
			p = end;
			s++;
		} else if (star && *back) {
			p = star;
			s = ++back;
		} else {
			return 0;
		}
	}
}

/* Length of the name without _v2..., _ptsz, _ptds: what the function is called in the headers. */
static inline size_t gf_base(const char *name)
{
	size_t n = 0;

	while (name[n])
		n++;
	if (n > 5 && name[n - 5] == '_' && name[n - 4] == 'p' && name[n - 3] == 't')
		n -= 5;
	if (n > 3 && name[n - 3] == '_' && name[n - 2] == 'v' && name[n - 1] >= '1' && name[n - 1] <= '9')
		n -= 3;
	return n;
}

/* Whether the glob fits the exported name or its base. */
static inline int gf_function(const char *glob, const char *name)
{
	char base[64];
	size_t n = gf_base(name);

	if (gf_glob(glob, name))
		return 1;
	if (!name[n] || n >= sizeof base)
		return 0;
	for (size_t i = 0; i < n; i++)
		base[i] = name[i];
	base[n] = 0;
	return gf_glob(glob, base);
}

/* A name that may be ours: cu[A-Z], nvml[A-Z], or cuda[A-Z] for the runtime's file. Never the bare prefix: cudnn, cublas and cufft begin so too. */
static inline int gf_ours(const char *name, int runtime)
{
	const char *prefix = runtime ? "cuda" : *name == 'n' ? "nvml" : "cu";

	while (*prefix)
		if (*prefix++ != *name++)
			return 0;
	return *name >= 'A' && *name <= 'Z';
}

/* Behind the last slash. */
static inline const char *gf_basename(const char *path)
{
	const char *base = path;

	for (; *path; path++)
		if (*path == '/')
			base = path + 1;
	return base;
}

/* splitmix64 of the i-th step after seed: the same numbers as in Go. */
static inline uint64_t gf_mix(uint64_t seed, uint64_t i)
{
	uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

/* Whether counted call i trips, as far as its number alone says. */
static inline int gf_trips(const struct gf_state *s, uint64_t i)
{
	if (i < s->after_calls || (s->every > 1 && (i - s->after_calls) % s->every))
		return 0;
	return !s->probability || gf_mix(s->seed, i) >> 32 < s->probability;
}

/* How many of the n calls from number i on do not trip before the first that does. */
static inline unsigned gf_quiet(const struct gf_state *s, uint64_t i, unsigned n)
{
	unsigned k = 0;

	if (s->after_calls >= i && s->after_calls - i >= n)
		return n;
	while (k < n && !gf_trips(s, i + k))
		k++;
	return k;
}

/* Nothing narrows the trigger: a new process is struck at its cuInit. */
static inline int gf_immediate(const struct gf_state *s)
{
	return !s->after_calls && !s->every && !s->probability && !s->max && !s->after_ms && !s->window_from_ms && !s->window_to_ms && !s->function[0];
}

/* Unsigned decimal; stops at the first other character and at the type's end. *p is behind the digits. */
static inline int64_t gf_number(const char **p)
{
	int64_t n = 0;

	for (; **p >= '0' && **p <= '9' && n < (int64_t)1 << 40; ++*p)
		n = n * 10 + **p - '0';
	return n;
}

/* Ordinal of NVML's device index under CUDA_VISIBLE_DEVICES (list of numbers; otherwise they are the same); -1: not visible to CUDA. */
static inline int gf_ordinal(const char *visible, int64_t index)
{
	int at = 0;

	for (const char *p = visible; p && *p; p++) {
		if (*p < '0' || *p > '9')
			return p == visible ? (int)index : -1;
		if (gf_number(&p) == index)
			return at;
		at++;
		if (*p != ',')
			return -1;
	}
	return visible && *visible ? -1 : (int)index;
}

/* Visible device number i among those that `hide` leaves: its real ordinal. -1 beyond 64. */
static inline int gf_unhide(uint64_t hide, int i)
{
	for (int real = 0; real < 64; real++)
		if (!(hide >> real & 1) && i-- == 0)
			return real;
	return -1;
}

#endif
