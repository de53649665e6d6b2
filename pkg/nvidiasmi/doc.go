// Package nvidiasmi parses the output of `nvidia-smi -q -x`, in all generations of its schema (nvsmi_device_v4 to v13
// and later).
//
// A value that the driver does not report is absent: a nil pointer, or an empty string. This applies to fields that the
// schema of an older driver lacks, and to N/A, [Not Supported], "Requested functionality has been deprecated" and
// similar texts. An absent value is never represented by zero.
//
// The package is pure, and its input is untrusted: size, depth and number of elements are limited (see [Parse]).
package nvidiasmi
