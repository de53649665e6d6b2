/*
 * x86_64: one stub of 32 bytes per hook. Free at a function's entry are r10 and r11; everything else, the stack too, goes on as it came.
 * rax holds the number of vector registers of a variadic call, so it is kept.
 */
#include "hooks-asm.h"
	.text
	.globl gf_stubs, gf_stubs_end
	.hidden gf_stubs, gf_stubs_end
	.p2align 5
gf_stubs:
	.set index, 0
.macro stub name
	.p2align 5
	.globl \name
	.type \name, @function
\name:
	movq gf_thread@gottpoff(%rip), %r11
	movl gf_table + 16 * index + 8(%rip), %r10d
	subl %r10d, %fs:(%r11)          /* budget -= weight */
	js 1f
	jmp *gf_table + 16 * index(%rip)
1:	call gf_slow
	.size \name, . - \name
	.set index, index + 1
.endm
#define HOOK(name, classes, flags, special) stub name
#include GF_HOOKS
#undef HOOK
/* The same again, without names, for the second half of the table. */
.macro second
	.p2align 5
	movq gf_thread@gottpoff(%rip), %r11
	movl gf_table + 16 * index + 8(%rip), %r10d
	subl %r10d, %fs:(%r11)
	js 1f
	jmp *gf_table + 16 * index(%rip)
1:	call gf_slow
	.set index, index + 1
.endm
#define HOOK(name, classes, flags, special) second
#include GF_HOOKS
#undef HOOK
	.p2align 5
gf_stubs_end:

/* r11: offset of the budget, r10d: the weight; on the stack the stub's address + 31, then the caller's. */
	.hidden gf_slow
gf_slow:
	addl %r10d, %fs:(%r11)
	popq %r10
	leaq gf_stubs(%rip), %r11
	subq %r11, %r10
	shrq $5, %r10                   /* number of the hook */
	subq $184, %rsp
	movq %rdi, (%rsp)
	movq %rsi, 8(%rsp)
	movq %rdx, 16(%rsp)
	movq %rcx, 24(%rsp)
	movq %r8, 32(%rsp)
	movq %r9, 40(%rsp)
	movq %rax, 48(%rsp)
	movups %xmm0, 56(%rsp)
	movups %xmm1, 72(%rsp)
	movups %xmm2, 88(%rsp)
	movups %xmm3, 104(%rsp)
	movups %xmm4, 120(%rsp)
	movups %xmm5, 136(%rsp)
	movups %xmm6, 152(%rsp)
	movups %xmm7, 168(%rsp)
	movl %r10d, %edi
	movq %rsp, %rsi
	call gf_enter
	movq %rax, %r11
	movq %rdx, %r10
	movq (%rsp), %rdi
	movq 8(%rsp), %rsi
	movq 16(%rsp), %rdx
	movq 24(%rsp), %rcx
	movq 32(%rsp), %r8
	movq 40(%rsp), %r9
	movq 48(%rsp), %rax
	movups 56(%rsp), %xmm0
	movups 72(%rsp), %xmm1
	movups 88(%rsp), %xmm2
	movups 104(%rsp), %xmm3
	movups 120(%rsp), %xmm4
	movups 136(%rsp), %xmm5
	movups 152(%rsp), %xmm6
	movups 168(%rsp), %xmm7
	addq $184, %rsp
	testq %r11, %r11
	jz 1f
	jmp *%r11
1:	movq %r10, %rax
	ret

#ifndef GF_EXPORT_ONLY
/*
 * dlsym(handle, name): names that cannot be ours jump on to the real one, with the caller's address where it was: RTLD_NEXT means "after the
 * caller". gf_routed says which.
 */
	.globl dlsym
	.type dlsym, @function
	.p2align 4
dlsym:
	pushq %rdi
	pushq %rsi
	subq $8, %rsp
	movq 24(%rsp), %rdx             /* the caller */
	call gf_routed
	addq $8, %rsp
	popq %rsi
	popq %rdi
	testl %eax, %eax
	jnz gf_dlsym
	movq gf_real_dlsym(%rip), %r11
	testq %r11, %r11
	jz 3f
	jmp *%r11
3:	pushq %rdi
	pushq %rsi
	subq $8, %rsp
	call gf_find_dlsym
	addq $8, %rsp
	popq %rsi
	popq %rdi
	testq %rax, %rax
	jz 4f
	jmp *%rax
4:	ret
	.size dlsym, . - dlsym
#endif

/* The file run as a program: see start.c. */
	.hidden gf_start
	.globl gf_start
gf_start:
	andq $-16, %rsp
	call gf_main
	hlt

	.section .note.GNU-stack, "", @progbits
