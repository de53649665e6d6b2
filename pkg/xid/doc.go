// Package xid models the errors that NVIDIA's driver reports in the kernel log: the catalog of XIDs, the wording of
// their lines, the errors that occur together, and how the detectors in a cluster react to each line.
//
// An [Event] is one report from the driver. [New] creates one from the catalog, [Parse] parses one from a log line, and
// [Record] encodes one for a single write to /dev/kmsg. A [Detector] judges an event by applying its own patterns to
// the text that it would actually read: the raw record, or journald's version of it ([JournaldView]).
//
// The package is pure: it accesses no files except its embedded tables. All functions are safe for concurrent use.
//
// Sources: NVIDIA's open-gpu-kernel-modules 595.45.04 (kernel_rc.c, nverror.h), NVIDIA's Xid-Catalog.xlsx of October
// 2025, and the source code of the detectors as of mid-2026. The behavior of the kernel and of journald was measured on
// kernels 6.1 and 6.18 and systemd 252.
package xid
