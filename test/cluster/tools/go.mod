module github.com/gpu-fault/kubectl-gpu-fault/test/cluster/tools

go 1.26.0
