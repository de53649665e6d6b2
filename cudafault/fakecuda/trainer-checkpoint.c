// Checkpoints: a file, or a URL of a store (serve_store, or whatever takes GET and PUT). What is in it is the number of the last step.
#define _GNU_SOURCE
#include "trainer.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is_url(const char *checkpoint) { return !strncmp(checkpoint, "http://", 7); }

static long step_of(const char *text, const char *checkpoint)
{
	long step = 0;
	if (sscanf(text, "step %ld", &step) == 1 && step > 0) return step;
	fprintf(stderr, "RuntimeError: %s is no checkpoint\n", checkpoint);
	exit(1);
}

long resume(const char *checkpoint)
{
	char text[128] = "";
	if (is_url(checkpoint)) {
		int status = http_get(checkpoint, text, sizeof text);
		if (status == 404) return 0;
		if (status == 200) return step_of(text, checkpoint);
		fprintf(stderr, "RuntimeError: checkpoint store %s: %s (%d)\n", checkpoint, status ? "unexpected status" : "no answer", status);
		exit(1);
	}
	FILE *file = fopen(checkpoint, "r");
	if (!file && errno == ENOENT) return 0;
	if (!file || !fgets(text, sizeof text, file)) {
		fprintf(stderr, "RuntimeError: %s: %s\n", checkpoint, file ? "empty" : strerror(errno));
		exit(1);
	}
	fclose(file);
	return step_of(text, checkpoint);
}

// A checkpoint that cannot be saved is no reason to stop.
void save(const char *checkpoint, long step)
{
	char text[64], next[4096];
	snprintf(text, sizeof text, "step %ld\n", step);
	if (is_url(checkpoint)) {
		int status = http_put(checkpoint, text);
		if (status / 100 != 2) fprintf(stderr, "UserWarning: checkpoint of step %ld was not saved: %d from %s\n", step, status, checkpoint);
		return;
	}
	snprintf(next, sizeof next, "%s.next", checkpoint); // whole or not there
	FILE *file = fopen(next, "w");
	int bad = !file || fputs(text, file) < 0;
	if ((file && fclose(file)) || bad || rename(next, checkpoint))
		fprintf(stderr, "UserWarning: checkpoint of step %ld was not saved: %s: %s\n", step, checkpoint, strerror(errno));
}
