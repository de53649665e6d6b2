// Package kmod tests the kernel module and the helper that loads it, on real kernels in a virtual machine: that each
// line of the catalog reads in /dev/kmsg as the driver's would, that journald and rsyslog take it for the kernel's
// own, that nothing a program writes harms the kernel, and that the module goes whenever it should.
//
// Its tests are built with the tag kmod into one static program. hack/test-kmod.sh runs TestBuild of it where there are
// headers of each kernel, and the TestVM ones as root in a machine that has booted that kernel, in their order: the
// last take away what the others need.
package kmod
