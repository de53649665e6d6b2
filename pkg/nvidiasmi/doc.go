// Package nvidiasmi reads what `nvidia-smi -q -x` prints, of every generation of its schema (nvsmi_device_v4 to v13 and
// later).
//
// A value that the driver does not tell is absent: a nil pointer, or an empty string. That is so for fields that the
// schema of an older driver lacks, and for N/A, [Not Supported], "Requested functionality has been deprecated" and
// their like. Absent is never zero.
//
// The package is pure, and its input is untrusted: size, depth and number of elements are bounded (see [Parse]).
package nvidiasmi
