module github.com/gpu-fault/kubectl-gpu-fault/hack/pack

go 1.26.0

require github.com/DataDog/zstd v1.5.7
