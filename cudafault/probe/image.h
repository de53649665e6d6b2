// The kernels of the probes as PTX: the fake driver takes any text and knows kernels by their names, a real one compiles them.
// test/gpu/fidelity.py reads the lines between quotes.
#pragma once
#define IMAGE \
	".version 7.0\n" \
	".target sm_70\n" \
	".address_size 64\n" \
	".visible .entry noop() { ret; }\n" \
	".visible .entry vectorAdd(.param .u64 pa, .param .u64 pb, .param .u64 psum, .param .u32 pn) {\n" \
	".reg .pred %p; .reg .f32 %x, %y; .reg .b32 %i, %n, %b, %t; .reg .b64 %a, %c, %s, %o;\n" \
	"ld.param.u64 %a, [pa]; ld.param.u64 %c, [pb]; ld.param.u64 %s, [psum]; ld.param.u32 %n, [pn];\n" \
	"mov.u32 %b, %ctaid.x; mov.u32 %t, %ntid.x; mul.lo.u32 %i, %b, %t; mov.u32 %t, %tid.x; add.u32 %i, %i, %t;\n" \
	"setp.ge.s32 %p, %i, %n; @%p ret;\n" \
	"mul.wide.u32 %o, %i, 4; add.u64 %a, %a, %o; add.u64 %c, %c, %o; add.u64 %s, %s, %o;\n" \
	"ld.global.f32 %x, [%a]; ld.global.f32 %y, [%c]; add.f32 %x, %x, %y; st.global.f32 [%s], %x; ret; }\n" \
	".visible .entry fill(.param .u64 pat, .param .f32 pvalue, .param .u32 pn) {\n" \
	".reg .pred %p; .reg .f32 %x; .reg .b32 %i, %n, %b, %t; .reg .b64 %a, %o;\n" \
	"ld.param.u64 %a, [pat]; ld.param.f32 %x, [pvalue]; ld.param.u32 %n, [pn];\n" \
	"mov.u32 %b, %ctaid.x; mov.u32 %t, %ntid.x; mul.lo.u32 %i, %b, %t; mov.u32 %t, %tid.x; add.u32 %i, %i, %t;\n" \
	"setp.ge.s32 %p, %i, %n; @%p ret;\n" \
	"mul.wide.u32 %o, %i, 4; add.u64 %a, %a, %o; st.global.f32 [%a], %x; ret; }\n" \
	".visible .entry stray(.param .u64 pat) {\n" \
	".reg .b32 %x; .reg .b64 %a; ld.param.u64 %a, [pat]; mov.u32 %x, 1; st.global.u32 [%a], %x; ret; }\n" \
	".visible .entry trap() { trap; ret; }\n"
