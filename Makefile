# Everything one does with this repository. `make` lists the targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

export GOFLAGS := -trimpath -buildvcs=false
VERSION ?= $(shell git describe --tags --dirty --match 'v*' 2>/dev/null || echo v0.0.0-dev)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
DATE    ?= $(shell git log -1 --format=%cI 2>/dev/null || echo unknown)
BUILD   := github.com/gpu-fault/kubectl-gpu-fault/pkg/build
LDFLAGS := -s -w -X $(BUILD).version=$(VERSION) -X $(BUILD).commit=$(COMMIT) -X $(BUILD).date=$(DATE)
# Without inlining outside of the standard library: it would make the binary 6 MB larger, and the archive 2.8 MB, for CPU time that is spent
# waiting for the API server anyway.
# What only parses or transports is not inlined there either, for 0.5 MB.
COLD    := reflect sort strconv unicode/... strings bytes errors net/... vendor/... crypto/... encoding/... go/... text/... html/... mime/... math/big archive/... bufio container/... context database/... \
           debug/... flag fmt hash/... internal/... io/... log/... os/... path/... regexp/syntax time
HOT     := internal/abi internal/bytealg internal/chacha8rand internal/runtime/... internal/sync
LEAN    := -tags=packed -gcflags=all=-l -gcflags=std= $(COLD:%=-gcflags=%=-l) $(HOT:%=-gcflags=%=)

HELPERS := $(foreach arch,amd64 arm64,debugpod/helper/gpu-fault-node-linux-$(arch).zst) pkg/doctor/signatures/signatures.zst pkg/scenario/packs/packs.zst pkg/redact/rules.tsv.zst pkg/xid/catalog.tsv.zst pkg/xid/bodies.tsv.zst $(addsuffix .zst,$(wildcard cudafault/lib/*/*.so cudafault/lib/*/crash cudafault/shim/*.def cudafault/*.tsv))
HELPER_SOURCES := $(shell find cmd/gpu-fault-node debugpod/api debugpod/node debugpod/cri debugpod/rpc debugpod/deadman kmod pkg/build pkg/containerd pkg/count pkg/patch \( -name '*.go' ! -name '*_test.go' \) -o -path 'kmod/module/*') go.mod Makefile

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

.PHONY: build
build: bin/kubectl-gpu_fault ## Build bin/kubectl-gpu_fault, with the helpers for both architectures inside

.PHONY: bin/kubectl-gpu_fault
bin/kubectl-gpu_fault: $(HELPERS)
	CGO_ENABLED=0 go build $(LEAN) -ldflags '$(LDFLAGS) -funcalign=$(if $(filter amd64,$(shell go env GOARCH)),1,4)' -o $@ ./cmd/kubectl-gpu_fault

# kubectl from its module, of the release that the plugin is built with, for tests and the benchmark.
KUBECTL_VERSION = $(subst v0.,v1.,$(shell go list -m -f '{{.Version}}' k8s.io/kubectl))
bin/kubectl: go.mod $(wildcard test/kubectl/*.go)
	CGO_ENABLED=0 go build $(LEAN) -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=$(KUBECTL_VERSION)' -o $@ ./test/kubectl

# The same sources give the same bytes: no build ID, no path, no time. No inlining: 8 % smaller, and the client embeds two of them.
# The second one is compressed with the first one as a dictionary, which saves a fifth.
debugpod/helper/gpu-fault-node-linux-arm64.zst: debugpod/helper/gpu-fault-node-linux-amd64.zst
debugpod/helper/gpu-fault-node-linux-%.zst: $(HELPER_SOURCES) pkg/packed/branches.go hack/pack/main.go hack/pack/go.mod
	CGO_ENABLED=0 GOOS=linux GOARCH=$* go build -gcflags=all=-l -ldflags '-s -w -buildid=' -o $(@:.zst=) ./cmd/gpu-fault-node
	CGO_ENABLED=0 go run ./hack/branches $(@:.zst=) $*
	CGO_ENABLED=1 go run -C hack/pack . $(abspath $(@:.zst=) $(filter %.zst,$^))
	rm $(@:.zst=)

# What `-tags packed` embeds in place of the YAML files, which are five times as large; the signatures as JSON, which is read faster.
pkg/doctor/signatures/signatures.zst: $(wildcard pkg/doctor/signatures/*.yaml pkg/doctor/signatures/*.go hack/signatures/*.go) hack/pack/main.go hack/pack/go.mod
	CGO_ENABLED=0 go run ./hack/signatures >$(@:.zst=)
	CGO_ENABLED=1 go run -C hack/pack . $(abspath $(@:.zst=))
	rm $(@:.zst=)

pkg/scenario/packs/packs.zst: $(wildcard pkg/scenario/packs/*.yaml) hack/pack/main.go hack/pack/go.mod
	tail -n +1 pkg/scenario/packs/*.yaml >$(@:.zst=)
	CGO_ENABLED=1 go run -C hack/pack . $(abspath $(@:.zst=))
	rm $(@:.zst=)

%.tsv.zst: %.tsv hack/pack/main.go hack/pack/go.mod
	CGO_ENABLED=1 go run -C hack/pack . $(abspath $<)

%.so.zst: %.so hack/pack/main.go hack/pack/go.mod
	CGO_ENABLED=1 go run -C hack/pack . $(abspath $<)

%/crash.zst: %/crash hack/pack/main.go hack/pack/go.mod
	CGO_ENABLED=1 go run -C hack/pack . $(abspath $<)

%.def.zst: %.def hack/pack/main.go hack/pack/go.mod
	CGO_ENABLED=1 go run -C hack/pack . $(abspath $<)

.PHONY: helpers
helpers: $(HELPERS)

# What is not a version, and a tree that is not committed, is refused before anything is built.
RELEASE = CGO_ENABLED=0 go run ./hack/release -commit '$(COMMIT)' -date '$(DATE)' -flags '$(LEAN)' -ldflags '$(LDFLAGS)' -version '$(if $(filter-out file,$(origin VERSION)),$(VERSION))' $(RELEASE_FLAGS)
.PHONY: release
release: ## Build a release into dist (VERSION=v1.2.3): archives, checksums, bills of materials, krew manifest, notes
	@$(RELEASE)

.PHONY: test-krew
test-krew: bin/kubectl ## The whole life of a release with the real krew and kubectl, offline: install, upgrade, uninstall, and what must fail
	@$(MAKE) --no-print-directory release VERSION=v0.0.0-test
	@CGO_ENABLED=0 go run ./test/krew

.PHONY: cluster-up
cluster-up: ## Start the local cluster (NODES=2); needs root on Linux
	@test/cluster/up

.PHONY: cluster-down
cluster-down: ## Take it down and prove that nothing is left
	@test/cluster/down

.PHONY: demo
demo: build ## Inject XID 79 on a real node, see it read back and detected, clean up (CONTEXT=kind-kind: on a cluster of yours)
	@hack/demo.sh

# What the jobs need is built before, and what Debian has is installed: test/suite only runs them.
SUITE = hack/install-tools.sh && CGO_ENABLED=0 go run ./test/suite
.PHONY: test
test: build bin/kubectl ## The tests: unit tests with the race detector, then end to end on real clusters (TIER=ci: with lint, demo and a share of the rest)
	@$(SUITE) -tier $(or $(TIER),test) $(SUITE_FLAGS)

.PHONY: test-all
test-all: build bin/kubectl ## Everything: all tests, both seeds of all scenarios, the whole crash matrix, fuzzing, krew, kernel module
	@$(SUITE) -tier all $(SUITE_FLAGS)

.PHONY: test-e2e
test-e2e: build bin/kubectl ## Only the end-to-end tests (REPEAT=10: ten times)
	@$(SUITE) -only '^e2e ' -repeat $(or $(REPEAT),1)

.PHONY: test-attacks
test-attacks: build bin/kubectl ## Only the attacks: what others can write, name and hand over reaches nothing
	@$(SUITE) -only ' attacks '

.PHONY: test-layers
test-layers: build bin/kubectl ## Only the layers: one XID in the kernel log, the kubelet and CUDA, seen coherently by every reader, 20 times
	@LAYERS_ROUNDS=10 $(SUITE) -only 'TestOneFaultInEveryLayer'

.PHONY: test-experiments
test-experiments: build bin/kubectl ## Only the experiments, with a stand-in for NVSentinel
	@$(SUITE) -only 'TestExperiment|TestExpectOnAFault'

.PHONY: unit
unit: $(HELPERS) ## Only the unit tests
	go test -race ./...

.PHONY: test-crash
test-crash: build ## Only the crash matrix: kill the client at every step, and everything else, and see the node heal
	@$(SUITE) -only '^crash group '

.PHONY: test-containerd
test-containerd: ## Break and restore every handler of real containerd configurations, byte for byte (and of CONFIGS=folder)
	@hack/test-containerd.sh

.PHONY: test-scenarios
test-scenarios: build ## Only the scenarios, each with two seeds: broken, solved, fixed wrongly, graded, put back
	@$(SUITE) -only '^scenario .* seed '

.PHONY: test-cheats
test-cheats: build ## Only the cheats and unusual fixes of scenarios: no cheat passes, no honest fix fails
	@$(SUITE) -only '^cheats '

.PHONY: test-doctor
test-doctor: ## Doctor on snapshots of broken and of healthy clusters: roots right, false alarms
	@hack/test-doctor.sh

.PHONY: test-shim
test-shim: ## The CUDA shim on the fake driver: every way to the driver, every effect
	@hack/test-shim.sh

.PHONY: test-kmod
test-kmod: ## The kernel module on Debian's kernels, each in a virtual machine (KERNELS=more for others); needs root
	@hack/test-kmod.sh

.PHONY: test-kmod-cluster
test-kmod-cluster: build ## By hand: xid --via kmod, the whole way, on a test cluster in a virtual machine; needs root and a quiet machine
	@hack/test-kmod-cluster.sh

.PHONY: test-real-libraries
test-real-libraries: ## By hand: the shim with NVIDIA's own libraries, which it downloads from Debian's non-free, and on many C libraries
	@hack/test-real-libraries.sh
	@test/realcuda/libc.sh

.PHONY: bench-shim
bench-shim: ## Measure what a call through the shim costs
	@hack/bench-shim.sh

.PHONY: shim verify-shim
shim: ## Build the shim for both architectures into cudafault/lib; needs gcc and gcc-aarch64-linux-gnu
	@hack/shim.sh build
verify-shim: ## Build it again and compare with the committed files, byte for byte
	@hack/shim.sh check
	@hack/shim.sh test
	@hack/shim.sh verify

.PHONY: lint
lint: $(HELPERS) ## gofmt, golangci-lint, types on other systems, licenses, actionlint, shellcheck
	@hack/install-tools.sh
	@hack/lint.sh

.PHONY: bench
bench: build bin/kubectl cluster-up ## Measure everything against floors and peers, on the test cluster (WHAT=xid,doctor: some; BENCH_FLAGS='-o json')
	@CGO_ENABLED=0 go run ./hack/bench -what '$(WHAT)' $(BENCH_FLAGS)

.PHONY: soak
soak: build bin/kubectl cluster-up ## By hand: an hour of mixed faults, kills and restarts on the test cluster, without a leak (SOAK=15m)
	@CGO_ENABLED=0 go run ./hack/soak -for $(or $(SOAK),1h) -kubeconfig $(or $(STATE),.cluster)/kubeconfig $(SOAK_FLAGS)

.PHONY: test-peers
test-peers: ## By hand: NVSentinel (SOURCE=folder), NVIDIA's device plugin (DEVICE_PLUGIN_SOURCE) and DRA driver (DRA_DRIVER_SOURCE) react to XIDs
	@[ -z "$(DEVICE_PLUGIN_SOURCE)" ] || SOURCE="$(DEVICE_PLUGIN_SOURCE)" test/peers/device-plugin/run
	@[ -z "$(DRA_DRIVER_SOURCE)" ] || SOURCE="$(DRA_DRIVER_SOURCE)" test/peers/dra-driver/run
	@[ -n "$(DEVICE_PLUGIN_SOURCE)$(DRA_DRIVER_SOURCE)" ] && [ -z "$(SOURCE)" ] || test/peers/nvsentinel/run

.PHONY: bench-allocs
bench-allocs: $(HELPERS) ## Hold the allocations of hot paths to test/bench/allocs.txt (ALLOCS_FLAGS=-update: write the file)
	@go run ./hack/allocs $(ALLOCS_FLAGS)

# A cluster of its own: the controller manager is stopped, and node-problem-detector would see the lines of other clusters.
SCALE = CLUSTER=scale SUBNET=10.97.0 STATE=$(CURDIR)/.scale NPD=0
.PHONY: bench-scale
bench-scale: build ## Measure how the cost of commands grows with the number of nodes, on a cluster of its own (SCALE_FLAGS='-sizes 50,100')
	@$(SCALE) test/cluster/up
	@trap '$(SCALE) test/cluster/down' EXIT; CGO_ENABLED=0 go run ./hack/bench-scale -state $(CURDIR)/.scale $(SCALE_FLAGS)

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin dist $(HELPERS) debugpod/helper/gpu-fault-node-linux-*
