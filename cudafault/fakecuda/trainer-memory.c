// The model's memory, as PyTorch's allocator takes it and as it complains: MODEL_MEMORY (weights, gradients and optimizer states) and
// ACTIVATION_MEMORY for each of BATCH_SIZE samples, both in fp32; PRECISION=bf16 halves them.
#define _GNU_SOURCE
#include "trainer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OUT_OF_MEMORY = 2 };
static const size_t piece = 2ull << 30; // most of what is asked for at once

size_t bytes_of(const char *name)
{
	static const struct { const char *unit; double size; } units[] = {
		{"", 1}, {"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9},
		{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30},
	};
	const char *text = getenv(name);
	if (!text || !*text) return 0;
	char *end;
	double value = strtod(text, &end);
	for (size_t i = 0; i < sizeof units / sizeof *units; i++)
		if (!strcmp(end, units[i].unit) && end != text && value >= 0) return (size_t)(value * units[i].size);
	fprintf(stderr, "ValueError: %s: '%s' is no size\n", name, text);
	exit(1);
}

// As torch's format_size.
static const char *size_text(size_t bytes, char text[32])
{
	if (bytes <= 1024) snprintf(text, 32, "%zu bytes", bytes);
	else if (bytes < 1ull << 20) snprintf(text, 32, "%.2f KiB", (double)bytes / 1024);
	else if (bytes < 1ull << 30) snprintf(text, 32, "%.2f MiB", (double)bytes / (1 << 20));
	else snprintf(text, 32, "%.2f GiB", (double)bytes / (1 << 30));
	return text;
}

// The words are those of torch 2.6.
static void out_of_memory(int device, size_t asked, size_t held)
{
	size_t available = 0, total = 0;
	char a[32], b[32], c[32], d[32], e[32];
	cu.cuMemGetInfo(&available, &total);
	fflush(stdout);
	fprintf(stderr, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %s. GPU %d has a total capacity of %s of which %s is free. "
		"Including non-PyTorch memory, this process has %s memory in use. Of the allocated memory %s is allocated by PyTorch, and 0 bytes is reserved by "
		"PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
		"fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)\n",
		size_text(asked, a), device, size_text(total, b), size_text(available, c), size_text(total - available, d), size_text(held, e));
	exit(1);
}

static size_t held;

static void hold(int device, size_t bytes)
{
	while (bytes) {
		size_t now = bytes < piece ? bytes : piece;
		uint64_t at;
		int code = cu.cuMemAlloc(&at, now);
		if (code == OUT_OF_MEMORY) out_of_memory(device, now, held);
		check(code, "cuMemAlloc(&at, now)");
		bytes -= now, held += now;
	}
}

void hold_model(int device)
{
	size_t model = bytes_of("MODEL_MEMORY"), activation = bytes_of("ACTIVATION_MEMORY");
	const char *precision = getenv("PRECISION"), *samples = getenv("BATCH_SIZE");
	long batch = samples && *samples ? strtol(samples, NULL, 10) : 1;
	char m[32], a[32];
	if (!model && !activation) return;
	if (!precision || !*precision) precision = "fp32";
	if (!strcmp(precision, "bf16") || !strcmp(precision, "fp16")) model /= 2, activation /= 2;
	else if (strcmp(precision, "fp32")) exit((fprintf(stderr, "ValueError: PRECISION: '%s' is none of fp32, bf16, fp16\n", precision), 1));
	if (batch < 1) exit((fprintf(stderr, "ValueError: batch_size should be a positive integer value, but got batch_size=%s\n", samples), 1));
	printf("model: %s %s; batch of %ld: %s of activations for each sample\n", precision, size_text(model, m), batch, size_text(activation, a));
	hold(device, model);
	hold(device, activation * (size_t)batch);
}
