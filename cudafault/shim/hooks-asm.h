/* For the stubs: which list. */
#ifdef GF_CUDART
#define GF_HOOKS "hooks-cudart.def"
#else
#define GF_HOOKS "hooks.def"
#endif
