/*
 * The entry point of a program, in place of libc's crt1.o, whose reference to __libc_start_main is to the version of glibc 2.34: older ones
 * could not run the program.
 */
int main(int, char **, char **);
int __libc_start_main(int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void), void (*)(void), void *);

#ifdef __x86_64__
__asm__(".globl _start\n.type _start, @function\n_start:\n\txor %ebp, %ebp\n"
	"\tmov %rsp, %rdi\n\tmov %rdx, %rsi\n\tand $-16, %rsp\n\tcall begin\n\thlt\n");
#else
__asm__(".globl _start\n.type _start, %function\n_start:\n\tmov x29, #0\n\tmov x30, #0\n\tmov x1, x0\n\tmov x0, sp\n\tbl begin\n\tbrk #0\n");
#endif

/* begin gets the stack as the kernel or the loader left it, argc first, and what the loader wants to be called at the end. */
__attribute__((noreturn, visibility("hidden"), used)) void begin(long *stack, void (*at_end)(void))
{
	__libc_start_main(main, (int)stack[0], (char **)(stack + 1), 0, 0, at_end, stack);
	__builtin_unreachable();
}
