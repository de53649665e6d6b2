/* Functions that the fake driver uses and that came into glibc later than a program of today need be: linked into it in place of libc's. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>

int memfd_create(const char *name, unsigned flags);
__attribute__((visibility("hidden"))) int memfd_create(const char *name, unsigned flags) /* glibc 2.27 */
{
	return (int)syscall(SYS_memfd_create, name, flags);
}
