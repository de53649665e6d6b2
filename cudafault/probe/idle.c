// An ordinary program, for libcs on which the shim only has to do no harm (musl): threads, memory, dlopen and dlsym of itself, a child.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int marker(void) { return 42; }

static void *one(void *sum)
{
	char *memory = malloc(1 << 20);
	memset(memory, 1, 1 << 20);
	*(int *)sum = memory[4711] + memory[1 << 19];
	free(memory);
	return NULL;
}

int main(void)
{
	pthread_t ids[8];
	int sums[8], total = 0, status = 0;
	for (int i = 0; i < 8; i++) pthread_create(&ids[i], NULL, one, &sums[i]);
	for (int i = 0; i < 8; i++) pthread_join(ids[i], NULL), total += sums[i];
	void *self = dlopen(NULL, RTLD_NOW);
	int (*found)(void) = (int (*)(void))dlsym(self, "marker");
	void *none = dlsym(self, "no_such_name");
	printf("threads %d marker %d none %d driver %d\n", total, found ? found() : -1, none == NULL, dlsym(RTLD_DEFAULT, "cuInit") != NULL);
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) _exit(7);
	waitpid(pid, &status, 0);
	printf("child %d\n", WEXITSTATUS(status));
	return 0;
}
