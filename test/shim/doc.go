// Package shim tests the LD_PRELOAD shim of cudafault against the fake driver, without a GPU: that no way to the driver
// leads past it, that it changes nothing while it is not armed, that each effect is what the state asked for, and that
// it keeps the rules that other interposers learnt by crashing.
//
// Its tests need gcc, a gcc for aarch64, qemu-user, musl-gcc and strace, and are built with the tag shim;
// hack/test-shim.sh runs them and prints the matrix of paths.
package shim
