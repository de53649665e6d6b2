/*
 * aarch64: one stub of 36 bytes per hook (all lies within 1 MiB, so one instruction forms an address). Free at a function's
 * entry are x9 to x17; x8 (address of a returned struct) and the arguments go on as they came, and so does the stack.
 */
#include "hooks-asm.h"
	.text
	.globl gf_stubs, gf_stubs_end
	.hidden gf_stubs, gf_stubs_end
	.p2align 6
gf_stubs:
	.set index, 0
.macro stub name
	.globl \name
	.type \name, %function
\name:
	ldr x9, :gottprel:gf_thread     /* offset of the budget */
	adr x11, gf_table + 16 * index
	mrs x10, tpidr_el0
	ldp x16, x12, [x11]             /* where to go; weight in the low half */
	ldr w13, [x10, x9]
	subs w13, w13, w12
	b.mi gf_slow
	str w13, [x10, x9]              /* budget -= weight */
	br x16
	.size \name, . - \name
	.set index, index + 1
.endm
#define HOOK(name, classes, flags, special) stub name
#include GF_HOOKS
#undef HOOK
/* The same again, without names, for the second half of the table. */
.macro second
	ldr x9, :gottprel:gf_thread
	adr x11, gf_table + 16 * index
	mrs x10, tpidr_el0
	ldp x16, x12, [x11]
	ldr w13, [x10, x9]
	subs w13, w13, w12
	b.mi gf_slow
	str w13, [x10, x9]
	br x16
	.set index, index + 1
.endm
#define HOOK(name, classes, flags, special) second
#include GF_HOOKS
#undef HOOK
gf_stubs_end:

/* x11: the row of the hook. The budget was not written. */
	.hidden gf_slow
gf_slow:
	stp x29, x30, [sp, #-224]!
	mov x29, sp
	stp x0, x1, [sp, #16]
	stp x2, x3, [sp, #32]
	stp x4, x5, [sp, #48]
	stp x6, x7, [sp, #64]
	str x8, [sp, #80]
	stp q0, q1, [sp, #96]
	stp q2, q3, [sp, #128]
	stp q4, q5, [sp, #160]
	stp q6, q7, [sp, #192]
	adrp x0, gf_table
	add x0, x0, :lo12:gf_table
	sub x0, x11, x0
	lsr x0, x0, #4                  /* number of the hook */
	add x1, sp, #16
	bl gf_enter
	mov x16, x0
	mov x17, x1
	ldp x0, x1, [sp, #16]
	ldp x2, x3, [sp, #32]
	ldp x4, x5, [sp, #48]
	ldp x6, x7, [sp, #64]
	ldr x8, [sp, #80]
	ldp q0, q1, [sp, #96]
	ldp q2, q3, [sp, #128]
	ldp q4, q5, [sp, #160]
	ldp q6, q7, [sp, #192]
	ldp x29, x30, [sp], #224
	cbz x16, 1f
	br x16
1:	mov x0, x17
	ret

#ifndef GF_EXPORT_ONLY
/* dlsym(handle, name): see stubs-x86_64.S. */
	.globl dlsym
	.type dlsym, %function
	.p2align 4
dlsym:
	stp x29, x30, [sp, #-32]!
	mov x29, sp
	stp x0, x1, [sp, #16]
	mov x2, x30
	bl gf_routed
	mov w9, w0
	ldp x0, x1, [sp, #16]
	ldp x29, x30, [sp], #32
	cbnz w9, gf_dlsym
	adrp x16, gf_real_dlsym
	ldr x16, [x16, :lo12:gf_real_dlsym]
	cbz x16, 3f
	br x16
3:	stp x29, x30, [sp, #-32]!
	mov x29, sp
	stp x0, x1, [sp, #16]
	bl gf_find_dlsym
	mov x16, x0
	ldp x0, x1, [sp, #16]
	ldp x29, x30, [sp], #32
	cbz x16, 4f
	br x16
4:	mov x0, #0
	ret
	.size dlsym, . - dlsym
#endif

/* The file run as a program: see start.c. */
	.hidden gf_start
	.globl gf_start
gf_start:
	mov x29, #0
	mov x30, #0
	bl gf_main
	brk #0

	.section .note.GNU-stack, "", %progbits
