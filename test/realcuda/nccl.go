package main

import (
	"fmt"
	"path/filepath"
	"regexp"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
)

var cudaFailure = regexp.MustCompile(`Cuda failure (?:\d+ )?'([^']*)'`)

// nccl is NCCL on the last driver, with the static cudart that it brings: what it says of cuInit's error. It is run by
// the C library of -libc.
func (r *release) nccl(file string) error {
	libraries := one(r.libcRoot, "usr/lib/*-linux-gnu/libc.so.6")
	if libraries == "" {
		return fmt.Errorf("%s: no libc.so.6 in it", r.libcRoot)
	}
	libraries = filepath.Dir(libraries)
	loader := []string{one(libraries, "ld-linux-*.so.*"), "--library-path", libraries + ":" + r.libraries}
	for _, c := range []struct {
		what   string
		shim   string
		state  *cudafault.State
		wanted string
	}{
		{"communicator for one GPU", "", nil, "no CUDA-capable device is detected"},
		{"the same, shim without a state", r.shim, nil, "no CUDA-capable device is detected"},
		{"the same, shim disarmed", r.shim, &cudafault.State{}, "no CUDA-capable device is detected"},
		{"the same, armed: cuInit 999", r.shim, &cudafault.State{ErrorInit: 999}, "unknown error"},
		{"the same, armed: cuInit 719", r.shim, &cudafault.State{ErrorInit: 719}, "unspecified launch failure"},
		{"the same, armed: cuInit 226", r.shim, &cudafault.State{ErrorInit: 226}, "unrecognized error code"},
	} {
		env, err := r.preload(c.shim, c.state)
		if err != nil {
			return err
		}
		env = append(env, "NCCL_DEBUG=WARN", "NCCL_SOCKET_IFNAME=lo", "NCCL_IB_DISABLE=1")
		got, err := program{line: append(loader[:3:3], filepath.Join(r.bin, "nccl"), file), env: env}.start()
		if err != nil {
			return err
		}
		seen := got.String()
		if found := cudaFailure.FindStringSubmatch(got.stdout + got.stderr); found != nil {
			seen = found[1]
		}
		r.see("NCCL "+filepath.Base(file), c.what, c.wanted, seen)
	}
	return nil
}
