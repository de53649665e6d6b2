/*
 * Makes what is compiled on a current glibc run on old ones: functions that got a new version since then are linked at their first one. In
 * glibc 2.34 libdl and libpthread went into libc, with new versions of all their functions that say nothing else.
 */
#ifdef __x86_64__
#define OLDEST(name) __asm__(".symver " #name ", " #name "@GLIBC_2.2.5")
#else /* glibc's first release for aarch64 */
#define OLDEST(name) __asm__(".symver " #name ", " #name "@GLIBC_2.17")
#endif

OLDEST(__libc_start_main);
OLDEST(dlopen);
OLDEST(dlsym);
OLDEST(dlclose);
OLDEST(dlerror);
OLDEST(dladdr);
OLDEST(pthread_once);
OLDEST(pthread_create);
OLDEST(pthread_join);
OLDEST(pthread_barrier_init);
OLDEST(pthread_barrier_wait);
#ifdef __x86_64__
__asm__(".symver posix_spawn, posix_spawn@GLIBC_2.2.5");
__asm__(".symver dlmopen, dlmopen@GLIBC_2.3.4");
__asm__(".symver memcpy, memcpy@GLIBC_2.2.5");
#else
OLDEST(dlmopen);
#endif
