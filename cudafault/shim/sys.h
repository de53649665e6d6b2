/* The machine under the shim: raw system calls (errno of the program stays untouched, nothing is interposed), atomics, small text tools. */
#ifndef GF_SYS_H
#define GF_SYS_H

#include <stddef.h>
#include <stdint.h>

#if defined __x86_64__
enum { GF_READ = 0, GF_WRITE = 1, GF_CLOSE = 3, GF_FSTAT = 5, GF_MPROTECT = 10, GF_PREAD = 17, GF_PWRITE = 18, GF_NANOSLEEP = 35, GF_GETPID = 39,
       GF_EXECVE = 59, GF_KILL = 62, GF_FLOCK = 73, GF_FTRUNCATE = 77, GF_FCHMOD = 91, GF_CLOCK_GETTIME = 228, GF_EXIT_GROUP = 231, GF_OPENAT = 257,
       GF_UNLINKAT = 263, GF_LINKAT = 265, GF_READLINKAT = 267, GF_PROCESS_VM_READV = 310, GF_EXECVEAT = 322 };
struct gf_stat { uint64_t device, inode, links; uint32_t mode, uid, gid, pad; uint64_t rdev; int64_t size, rest[11]; };
static inline long gf_sys(long n, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long r;

	__asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return r;
}
#elif defined __aarch64__
enum { GF_READ = 63, GF_WRITE = 64, GF_CLOSE = 57, GF_FSTAT = 80, GF_MPROTECT = 226, GF_PREAD = 67, GF_PWRITE = 68, GF_NANOSLEEP = 101,
       GF_GETPID = 172, GF_EXECVE = 221, GF_KILL = 129, GF_FLOCK = 32, GF_FTRUNCATE = 46, GF_FCHMOD = 52, GF_CLOCK_GETTIME = 113, GF_EXIT_GROUP = 94,
       GF_OPENAT = 56, GF_UNLINKAT = 35, GF_LINKAT = 37, GF_READLINKAT = 78, GF_PROCESS_VM_READV = 270, GF_EXECVEAT = 281 };
struct gf_stat { uint64_t device, inode; uint32_t mode, links, uid, gid; uint64_t rdev, pad; int64_t size, rest[9]; };
static inline long gf_sys(long n, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = n;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
}
#else
#error "no system calls for this machine"
#endif

enum { GF_ENOENT = 2, GF_ESRCH = 3, GF_EINTR = 4, GF_EAGAIN = 11, GF_EFAULT = 14, GF_EEXIST = 17 };
#if defined __x86_64__
enum { GF_O_NOFOLLOW = 0400000 };
#else
enum { GF_O_NOFOLLOW = 0100000 };
#endif
enum { GF_AT_FDCWD = -100, GF_O_CLOEXEC = 02000000, GF_O_NONBLOCK = 04000, GF_O_CREAT = 0100, GF_O_EXCL = 0200, GF_O_RDWR = 2 };

static inline int gf_open(const char *path, int flags) { return (int)gf_sys(GF_OPENAT, GF_AT_FDCWD, (long)path, flags | GF_O_CLOEXEC, 0600, 0, 0); }
static inline void gf_close(int fd) { gf_sys(GF_CLOSE, fd, 0, 0, 0, 0, 0); }

/* Reads up to n bytes; the count, or what opening it failed with: -ENOENT. */
static inline long gf_read_file(const char *path, void *into, size_t n)
{
	int fd = gf_open(path, GF_O_NONBLOCK);
	size_t have = 0;

	if (fd < 0)
		return fd;
	while (have < n) {
		long r = gf_sys(GF_READ, fd, (long)((char *)into + have), (long)(n - have), 0, 0, 0);

		if (r == -GF_EINTR)
			continue;
		if (r <= 0)
			break;
		have += (size_t)r;
	}
	gf_close(fd);
	return (long)have;
}

#define gf_load(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define gf_peek(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define gf_store(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
#define gf_poke(p, v) __atomic_store_n(p, v, __ATOMIC_RELAXED)
#define gf_add(p, v) __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL)
#define gf_swap(p, v) __atomic_exchange_n(p, v, __ATOMIC_ACQ_REL)

static inline int gf_cas(int32_t *p, int32_t old, int32_t new_)
{
	return __atomic_compare_exchange_n(p, &old, new_, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static inline int gf_cas64(uint64_t *p, uint64_t old, uint64_t new_)
{
	return __atomic_compare_exchange_n(p, &old, new_, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static inline size_t gf_length(const char *s)
{
	size_t n = 0;

	while (s[n])
		n++;
	return n;
}

static inline int gf_same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

static inline int gf_prefix(const char *s, const char *prefix)
{
	while (*prefix)
		if (*s++ != *prefix++)
			return 0;
	return 1;
}

/* Copies the text and a NUL into n bytes, cut if it is longer; the rest is zero. */
static inline void gf_text(char *to, size_t n, const char *from)
{
	size_t i = 0;

	for (; i + 1 < n && from[i]; i++)
		to[i] = from[i];
	for (; i < n; i++)
		to[i] = 0;
}

#endif
