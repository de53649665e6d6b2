// Package xid knows the errors that NVIDIA's driver reports in the kernel log: the catalog of XIDs, how their lines
// read, which of them come together, and what the detectors of a cluster make of each line.
//
// An [Event] is one report of the driver. [New] makes one from the catalog, [Parse] from a line of a log, and
// [Record] turns it into the bytes that one write to /dev/kmsg takes. A [Detector] judges an event by applying its own
// patterns to what it would really get to read: the raw record, or what journald makes of it ([JournaldView]).
//
// The package is pure: it reads and writes no file but its embedded tables, and all functions are safe for concurrent
// use.
//
// Where the facts come from: NVIDIA's open-gpu-kernel-modules 595.45.04 (kernel_rc.c, nverror.h), NVIDIA's
// Xid-Catalog.xlsx of October 2025, and the sources of the detectors in the middle of 2026. Behavior of the kernel and
// of journald was measured on kernels 6.1 and 6.18 and systemd 252.
package xid
