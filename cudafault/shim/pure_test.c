/*
 * Tests of pure.h, hosted and with sanitizers (hack/shim.sh test): what is read from a file, and what decides. Then mutated state files: none may be
 * taken for a good one unless its checksum was made right, and none may make the shim read past a field.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pure.h"

static int failed;
#define CHECK(what) do { if (!(what)) { failed++; fprintf(stderr, "pure_test.c:%d: %s\n", __LINE__, #what); } } while (0)

static void seal(struct gf_state *s)
{
	s->checksum = 0;
	s->checksum = gf_fnv(s, sizeof *s, GF_FNV_START);
}

static struct gf_state good(void)
{
	struct gf_state s = { .version = 1, .size = 1024, .generation = 7, .armed_at = 1, .rank = -1, .classes = GF_LAUNCH, .error = 719 };

	memcpy(s.magic, "GPUFAULT", 8);
	seal(&s);
	return s;
}

static void validation(void)
{
	struct gf_state s = good();

	CHECK(gf_valid(&s, sizeof s));
	CHECK(!gf_valid(&s, sizeof s - 1));
	CHECK(!gf_valid(&s, sizeof s + 1));
	CHECK(!gf_valid(&s, 0));
	s.error = 700;
	CHECK(!gf_valid(&s, sizeof s)); /* a torn write */
	s = good(), s.version = 2, seal(&s);
	CHECK(!gf_valid(&s, sizeof s));
	s = good(), s.zero[sizeof s.zero - 1] = 1, seal(&s);
	CHECK(!gf_valid(&s, sizeof s));
	s = good(), s.node_count = 65, seal(&s);
	CHECK(!gf_valid(&s, sizeof s));
	s = good(), memset(s.process, 'a', sizeof s.process), seal(&s);
	CHECK(!gf_valid(&s, sizeof s));
	s = good(), memset(s.function, '*', sizeof s.function), seal(&s);
	CHECK(!gf_valid(&s, sizeof s));
	memset(&s, 0, sizeof s);
	CHECK(!gf_valid(&s, sizeof s));
}

static void globs(void)
{
	static const struct { const char *pattern, *name; int fits; } table[] = {
		{ "", "", 1 }, { "", "a", 0 }, { "*", "", 1 }, { "*", "cuInit", 1 }, { "cu*", "cuInit", 1 }, { "cu*t", "cuInit", 1 }, { "cu?nit", "cuInit", 1 },
		{ "cu*Async", "cuMemcpyAsync", 1 }, { "cu*Async", "cuMemcpyAsync_ptsz", 0 }, { "*Mem*Async*", "cuMemcpyHtoDAsync_v2", 1 }, { "[a-c]x", "bx", 1 },
		{ "[!a-c]x", "bx", 0 }, { "[^a-c]x", "dx", 1 }, { "[]]x", "]x", 1 }, { "[a", "[a", 1 }, { "[", "[", 1 }, { "[", "a", 0 }, { "[a-", "[a-", 1 },
		{ "python3*", "python3.11", 1 }, { "a*b*c", "aXbYbZc", 1 }, { "a*b*c", "aXbYbZ", 0 }, { "**", "x", 1 }, { "?", "", 0 },
		{ "[a]", "", 0 }, { "a[", "a", 0 },
	};

	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (gf_glob(table[i].pattern, table[i].name) != table[i].fits) {
			failed++;
			fprintf(stderr, "glob %s %s: not %d\n", table[i].pattern, table[i].name, table[i].fits);
		}
	CHECK(gf_function("cuMemAlloc", "cuMemAlloc_v2"));
	CHECK(gf_function("cuMemAlloc_v2", "cuMemAlloc_v2"));
	CHECK(gf_function("cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync_v2_ptsz"));
	CHECK(!gf_function("cuMemcpyHtoD", "cuMemcpyHtoDAsync_v2"));
	CHECK(gf_function("cuLaunch*", "cuLaunchKernel_ptsz"));
}

static void names(void)
{
	CHECK(gf_ours("cuInit", 0) && gf_ours("nvmlInit_v2", 0));
	/* The bare prefix of another tool swallowed these, and the first convolution recursed until it crashed. */
	CHECK(!gf_ours("cudnnCreate", 0) && !gf_ours("cublasCreate_v2", 0) && !gf_ours("cufftExec", 0));
	CHECK(!gf_ours("cuserid", 0) && !gf_ours("cudaMalloc", 0));
	CHECK(!gf_ours("cu", 0) && !gf_ours("c", 0) && !gf_ours("", 0) && !gf_ours("nvml", 0) && !gf_ours("nvmlinit", 0) && !gf_ours("n", 0));
	CHECK(gf_ours("cudaMalloc", 1) && !gf_ours("cuInit", 1) && !gf_ours("cudaa", 1) && !gf_ours("nvmlInit_v2", 1));
	CHECK(gf_base("cuMemAlloc_v2") == 10 && gf_base("cuMemcpy_ptds") == 8 && gf_base("cuMemcpyHtoD_v2_ptds") == 12);
	CHECK(gf_base("cuInit") == 6 && gf_base("") == 0);
	CHECK(!strcmp(gf_basename("/usr/bin/python3"), "python3") && !strcmp(gf_basename("x"), "x") && !strcmp(gf_basename("/"), ""));
}

static void triggers(void)
{
	struct gf_state s = { .after_calls = 0 };

	CHECK(gf_trips(&s, 0) && gf_trips(&s, 12345) && gf_immediate(&s));
	s.after_calls = 10;
	CHECK(!gf_trips(&s, 9) && gf_trips(&s, 10) && !gf_immediate(&s));
	CHECK(gf_quiet(&s, 0, 64) == 10 && gf_quiet(&s, 5, 3) == 3 && gf_quiet(&s, 10, 64) == 0);
	s.every = 4;
	CHECK(gf_trips(&s, 10) && !gf_trips(&s, 11) && gf_trips(&s, 14) && gf_quiet(&s, 11, 64) == 3);
	s.after_calls = UINT64_MAX;
	CHECK(gf_quiet(&s, 0, 64) == 64 && !gf_trips(&s, 1u << 31));
	s = (struct gf_state){ .probability = 1u << 30, .seed = 42 };
	{
		unsigned hits = 0;

		for (uint64_t i = 0; i < 100000; i++)
			hits += gf_trips(&s, i);
		CHECK(hits > 24500 && hits < 25500);
	}
	CHECK(gf_mix(0, 0) == 0xe220a8397b1dcdaf && gf_mix(0, 1) == 0x6e789e6aa1b965f4); /* the published splitmix64 sequence */
	CHECK(gf_fnv("a", 1, GF_FNV_START) == 0xaf63dc4c8601ec8c);
}

static void devices(void)
{
	CHECK(gf_ordinal(0, 3) == 3 && gf_ordinal("", 3) == 3 && gf_ordinal("2,3", 3) == 1 && gf_ordinal("2,3", 0) == -1 && gf_ordinal("GPU-5ab", 1) == 1);
	CHECK(gf_ordinal("0,99999999999999999999", 5) == -1 && gf_ordinal("1,", 1) == 0 && gf_ordinal("0,MIG-x,2", 2) == -1);
	CHECK(gf_unhide(5, 0) == 1 && gf_unhide(5, 1) == 3 && gf_unhide(0, 4) == 4 && gf_unhide(~0ull, 0) == -1);
}

/* Mutated files: flipped bits, cut ends, random fields with a right checksum. Sizes are on the heap, so that a read too far is seen. */
static void fuzz(unsigned rounds)
{
	unsigned taken = 0;

	srand(1);
	for (unsigned k = 0; k < rounds; k++) {
		struct gf_state s = good();
		size_t n = k % 7 ? sizeof s : (size_t)rand() % sizeof s;
		int flips = rand() % 6, whole = k % 3 == 0;
		uint8_t *b = malloc(n ? n : 1);

		for (int i = 0; i < flips; i++)
			((uint8_t *)&s)[24 + (size_t)rand() % 844] ^= (uint8_t)(1 << rand() % 8);
		if (whole)
			seal(&s);
		memcpy(b, &s, n);
		if (gf_valid((struct gf_state *)b, n)) {
			const struct gf_state *t = (struct gf_state *)b;

			taken++;
			CHECK(n == sizeof s && t->node_count <= 64 && strlen(t->process) < sizeof t->process);
			(void)gf_glob(t->process, "python3");
			(void)gf_function(t->function, "cuMemAlloc_v2");
			(void)gf_quiet(t, (uint64_t)rand(), 64);
			CHECK(whole || !memcmp(t, &s, sizeof s));
		}
		free(b);
	}
	for (unsigned k = 0; k < rounds; k++) { /* globs from a few characters: every one must end */
		char p[12] = "", t[12] = "";

		for (int i = 0; i < 11; i++)
			p[i] = "*?[]!a-b"[rand() % 8], t[i] = "ab[]-"[rand() % 5];
		p[rand() % 12] = t[rand() % 12] = 0;
		(void)gf_glob(p, t);
	}
	CHECK(taken > rounds / 10);
}

int main(void)
{
	validation();
	globs();
	names();
	triggers();
	devices();
	fuzz(200000);
	if (failed)
		return 1;
	puts("shim: pure parts ok");
	return 0;
}
