package main

import (
	"debug/elf"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
)

// release is NVIDIA's libraries of one Debian release.
type release struct {
	*bench
	libraries string // folder of libcuda.so.1 and libnvidia-ml.so.1
	driver    string // "libcuda 535.309.01"

	exported []string          // libcuda's functions
	symbols  map[string]string // the same and NVML's by file and offset, as where.h says
	hooks    map[string]bool   // what the shim exports
}

// nvidia tests with the packages under root. A runtime without a driver beside it is tested with the driver before it.
func (b *bench) nvidia(root string) error {
	if b.former == nil {
		b.former = &release{bench: b}
	}
	r := b.former
	if file := one(root, "usr/lib/*/nvidia/current/libcuda.so.*.*"); file != "" {
		r = &release{
			bench: b, libraries: filepath.Dir(file),
			driver: "libcuda " + strings.TrimPrefix(filepath.Base(file), "libcuda.so."),
		}
		b.former = r
		if err := r.read(file); err != nil {
			return err
		}
		if err := r.calls(); err != nil {
			return err
		}
		if err := r.routing(); err != nil {
			return err
		}
		if err := r.nvml(); err != nil {
			return err
		}
	}
	if file := one(root, "usr/lib/*/libcudart.so.*.*.*"); file != "" {
		if err := r.runtime(file); err != nil {
			return err
		}
	}
	if file := one(root, "usr/lib/nvidia/current/nvidia-smi"); file != "" {
		if err := r.smi(file); err != nil {
			return err
		}
	}
	if file := one(root, "usr/lib/*/libnccl.so.*.*.*"); file != "" {
		return r.nccl(file)
	}
	return nil
}

// read takes the names of functions out of the driver and the shim.
func (r *release) read(file string) error {
	functions, err := exports(file)
	if err != nil {
		return err
	}
	r.symbols = map[string]string{}
	for _, f := range functions {
		r.exported = append(r.exported, f.Name)
		r.symbols[place("libcuda.so.1", f)] = f.Name
	}
	slices.Sort(r.exported)
	ours, err := exports(r.shim)
	if err != nil {
		return err
	}
	r.hooks = map[string]bool{}
	for _, f := range ours {
		r.hooks[f.Name] = true
	}
	r.see(r.driver, fmt.Sprintf("%d exported functions, addresses that two share", len(functions)), "0",
		strconv.Itoa(len(functions)-len(r.symbols)))
	return nil
}

// place returns where a function lies, as where.h writes it.
func place(file string, f elf.Symbol) string { return fmt.Sprintf("%s+%#x", file, f.Value) }

func exports(file string) ([]elf.Symbol, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := f.DynamicSymbols()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return slices.DeleteFunc(all, func(s elf.Symbol) bool {
		return s.Section == elf.SHN_UNDEF || elf.ST_TYPE(s.Info) != elf.STT_FUNC
	}), nil
}

// try runs one of our programs, or another, with the driver of the release.
func (r *release) try(shim string, state *cudafault.State, stdin string, line ...string) (result, error) {
	env, err := r.preload(shim, state)
	if err != nil {
		return result{}, err
	}
	if !filepath.IsAbs(line[0]) {
		line[0] = filepath.Join(r.bin, line[0])
	}
	return program{line: line, env: append(env, "LD_LIBRARY_PATH="+r.libraries), stdin: stdin}.start()
}

// calls returns what cuInit and cuMemAlloc return by three ways, without a fault and with one.
func (r *release) calls() error {
	fault := func(s cudafault.State) *cudafault.State { s.Flags = cudafault.FlagQuiet; return &s }
	for _, c := range []struct {
		what   string
		shim   string
		state  *cudafault.State
		wanted string
	}{
		{"cuMemAlloc, cuInit: linked, dlsym, cuGetProcAddress", "", nil, "3 3 3, 100 100 100"},
		{"the same, shim without a state", r.shim, nil, "3 3 3, 100 100 100"},
		{"the same, shim disarmed", r.shim, fault(cudafault.State{}), "3 3 3, 100 100 100"},
		{"the same, armed: cuInit 999", r.shim, fault(cudafault.State{ErrorInit: 999}), "3 3 3, 999 999 999"},
		{"the same, armed: cuInit 226", r.shim, fault(cudafault.State{ErrorInit: 226}), "3 3 3, 226 226 226"},
		{
			"the same, armed: allocation 214", r.shim,
			fault(cudafault.State{Error: 214, Classes: cudafault.ClassAlloc}), "214 214 214, 100 100 100",
		},
	} {
		got, err := r.try(c.shim, c.state, "", "calls")
		if err != nil {
			return err
		}
		seen := got.String()
		seen = strings.TrimPrefix(strings.Replace(seen, "\ncuInit", ",", 1), "cuMemAlloc before cuInit ")
		r.see(r.driver, c.what, c.wanted, seen)
	}
	return nil
}
