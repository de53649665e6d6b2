package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
)

// versions that are asked for: those in which functions got new ones, and none that there ever was.
var versions = []int{0, 2000, 2020, 2030, 3010, 3020, 4000, 4010, 5050, 6000, 7000, 8000, 9000, 9020, 10000, 10010,
	10020, 11000, 11010, 11020, 11030,
	11040, 11060, 11070, 11080, 12000, 12010, 12020, 12030, 12040, 12050, 12080, 13000, 99000}

var suffix = regexp.MustCompile(`(_v\d+)?(_ptsz|_ptds)?$`)

// questions returns every exported name for dlsym, and every exported and bare name in each version, with each flag,
// for cuGetProcAddress.
func (r *release) questions() (symbols, addresses []string) {
	names := []string{"(empty)", "cuNoSuchFunction", "cu", "cudaMalloc", "cublasCreate_v2"}
	for _, name := range r.exported {
		symbols = append(symbols, "d "+name)
		names = append(names, name)
		if bare := suffix.ReplaceAllString(name, ""); bare != name {
			names = append(names, bare)
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		for _, version := range versions {
			for _, flags := range []int{0, 1, 2, 8} {
				for _, way := range []string{"1", "2", "n"} {
					addresses = append(addresses, fmt.Sprintf("%s %s %d %d", way, name, version, flags))
				}
			}
		}
	}
	return append(symbols, "d cuNoSuchFunction", "d cublasCreate_v2", "d nvmlInit_v2"), addresses
}

// routing compares every answer with and without the shim: our function for each that we take over, and else the same
// answer to the last bit.
func (r *release) routing() error {
	symbols, addresses := r.questions()
	disarmed := &cudafault.State{}
	if err := r.compareLookups("dlsym", symbols, nil, "libcuda.so.1"); err != nil {
		return err
	}
	if err := r.compareLookups("cuGetProcAddress and _v2", addresses, nil, "libcuda.so.1"); err != nil {
		return err
	}
	return r.compareLookups("the same after cuInit, disarmed", addresses, disarmed, "libcuda.so.1", "init")
}

// nvml does so for NVML's functions, which are found by dlsym alone.
func (r *release) nvml() error {
	functions, err := exports(filepath.Join(r.libraries, nvmlFile))
	if err != nil {
		return err
	}
	var questions []string
	for _, f := range functions {
		r.symbols[place(nvmlFile, f)] = f.Name
		questions = append(questions, "d "+f.Name)
	}
	return r.compareLookups("libnvidia-ml, dlsym", questions, nil, nvmlFile)
}

const nvmlFile = "libnvidia-ml.so.1"

// compareLookups asks the questions of a library (lookups.c) without the shim and with it.
func (r *release) compareLookups(what string, questions []string, state *cudafault.State, args ...string) error {
	stdin := strings.Join(questions, "\n") + "\n"
	line := append([]string{"lookups"}, args...)
	bare, err := r.try("", nil, stdin, slices.Clone(line)...)
	if err != nil {
		return err
	}
	ours, err := r.try(r.shim, state, stdin, line...)
	if err != nil {
		return err
	}
	routed, wrong, first := r.compare(strings.Split(bare.stdout, "\n"), strings.Split(ours.stdout, "\n"))
	if lines := strings.Count(bare.stdout, "\n"); bare.code != 0 || lines != len(questions)+len(args)-1 {
		wrong, first = wrong+1, fmt.Sprintf("%d answers, %s", lines, bare.stderr)
	}
	r.see(r.driver, fmt.Sprintf("%s: %d look-ups, %d of our functions", what, len(questions), routed),
		"0 answers wrong",
		strings.TrimSpace(fmt.Sprintf("%d answers wrong %s", wrong, first)))
	return nil
}

// compare counts the answers that the shim changes as it has to, and those that are wrong, of which it gives back the
// first.
func (r *release) compare(bare, ours []string) (routed, wrong int, first string) {
	for i := range max(len(bare), len(ours)) {
		wanted, got := "nothing", "nothing"
		if i < len(bare) {
			wanted = bare[i]
		}
		if i < len(ours) {
			got = ours[i]
		}
		if stub := r.stubFor(wanted); stub != wanted {
			wanted = stub
			routed++
		}
		if got != wanted {
			if wrong++; first == "" {
				first = fmt.Sprintf("(answer %d is %q, not %q)", i+1, got, wanted)
			}
		}
	}
	return routed, wrong, first
}

// stubFor returns the answer that the shim must make of one that the library gave: where.h says how they look.
func (r *release) stubFor(answer string) string {
	at := strings.LastIndexByte(answer, ' ') + 1
	if name := r.symbols[answer[at:]]; r.hooks[name] {
		return answer[:at] + "stub " + name
	}
	return answer
}
