package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
)

// smi is nvidia-smi, which finds NVML by dlopen and dlsym and starts it with nvmlInitWithFlags.
func (r *release) smi(file string) error {
	library := "nvidia-smi " + strings.TrimPrefix(r.driver, "libcuda ")
	if exe, err := filepath.EvalSymlinks(file); err == nil {
		file = exe
	}
	bare, err := r.try("", nil, "", file)
	if err != nil {
		return err
	}
	r.see(library, "without a GPU", "exit 9, couldn't communicate", ending(bare, "couldn't communicate"))
	for _, c := range idle {
		ours, err := r.try(r.shim, c.state, "", file)
		if err != nil {
			return err
		}
		r.see(library, c.what, "as without the shim", same(bare, ours))
	}
	for _, c := range []struct {
		code, exit int
		text       string
	}{{15, 15, "GPU is lost"}, {18, 18, "Driver/library version mismatch"}, {999, 255, "Unknown Error"}} {
		for _, args := range [][]string{nil, {"-L"}} {
			state := cudafault.State{NVMLInitError: c.code, Flags: cudafault.FlagQuiet}
			ours, err := r.try(r.shim, &state, "", append([]string{file}, args...)...)
			if err != nil {
				return err
			}
			r.see(library, strings.TrimSpace(fmt.Sprintf("armed: nvmlInit %d %s", c.code, strings.Join(args, " "))),
				fmt.Sprintf("exit %d, %s", c.exit, c.text), ending(ours, c.text))
		}
	}
	return nil
}

// ending returns the exit code, and the text if it was printed.
func ending(got result, text string) string {
	all := got.stdout + got.stderr
	if !strings.Contains(all, text) {
		text = strings.TrimSpace(all)
	}
	return fmt.Sprintf("exit %d, %s", got.code, text)
}
