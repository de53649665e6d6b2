// The tables that generate.awk makes of api.tsv and errors.tsv.
#pragma once

struct symbol {
	const char *name; // as asked for, without suffix
	int since;        // CUDA version, e.g. 11030
	int streams;      // bit 0: answers for the legacy default stream, bit 1: for per-thread ones
	void *address;
};
extern const struct symbol fake_symbols[]; // ends with a NULL name

struct error {
	int code;
	const char *name, *text;
	int since; // the first driver version that knows it
};
extern const struct error fake_errors[]; // ends with a NULL name
