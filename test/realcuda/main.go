// Command realcuda tests the shim of cudafault with what others built: NVIDIA's user-space libraries, which tell
// something without a GPU too, and the C libraries of several Debian releases. It prints a table of what was wanted and
// what was seen; the scripts beside it and hack/test-real-libraries.sh fetch the libraries, build the C programs, and
// call it.
//
//	realcuda nvidia -bin FOLDER -shim FILE ROOT...     ROOT: an unpacked libcuda1 libnvidia-ml1 nvidia-smi, libcudart,
//	                                                   libnccl2
//	realcuda libc -bin FOLDER -lib FOLDER ROOT...      ROOT: an unpacked libc6 or musl
//
// NVIDIA's packages are looked at from outside only: which of their exported functions are found by which name, and
// what calls return. cudart's check of its driver is never reached without a GPU, and nothing here answers it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "realcuda:", err)
		os.Exit(1)
	}
}

// errOther is what remains to be said when the table has said it.
var errOther = errors.New("not all is as wanted")

func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("nvidia or libc?")
	}
	set := flag.NewFlagSet("realcuda "+args[0], flag.ContinueOnError)
	b := bench{}
	set.StringVar(&b.bin, "bin", "", "folder with the C programs")
	set.StringVar(&b.shim, "shim", "", "the shim's file, for nvidia")
	set.StringVar(&b.lib, "lib", "", "folder with x86_64 and aarch64, a shim in each, for libc")
	set.StringVar(&b.lookups, "lookups", "", "folder with cudart-*.tsv, the look-ups that are on record")
	set.StringVar(&b.libcRoot, "libc", "", "an unpacked libc6, libstdc++6 and libgcc-s1, for NCCL")
	if err := set.Parse(args[1:]); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "realcuda-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	b.work = work

	what, each := "", (func(string) error)(nil)
	switch args[0] {
	case "nvidia":
		what, each = "real libraries", b.nvidia
	case "libc":
		what, each = "C libraries", b.libc
	default:
		return fmt.Errorf("%s: nvidia or libc?", args[0])
	}
	if set.NArg() == 0 {
		return errors.New("no libraries to test with")
	}
	for _, root := range set.Args() {
		if err := each(root); err != nil {
			return err
		}
	}
	return b.print(out, what)
}

// row is one line of the table. It is as wanted where both texts are the same.
type row struct{ library, what, wanted, seen string }

// see adds a row.
func (b *bench) see(library, what, wanted, seen string) {
	b.rows = append(b.rows, row{library, what, wanted, seen})
}

// print writes the table and its sum, and fails unless all rows are as wanted.
func (b *bench) print(out io.Writer, what string) error {
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "LIBRARY\tWHAT\tWANTED\tSEEN\tOK")
	good := 0
	for _, r := range b.rows {
		ok := "no"
		if r.wanted == r.seen {
			ok = "yes"
			good++
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", r.library, r.what, r.wanted, strings.ReplaceAll(r.seen, "\n", " | "),
			ok)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %d of %d as wanted\n", what, good, len(b.rows))
	if good < len(b.rows) {
		return errOther
	}
	return nil
}
