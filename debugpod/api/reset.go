package api

import (
	"fmt"
	"regexp"
)

// ResetGPU resets a GPU with the nvidia-smi of the node. It is refused if a program has the GPU open, or if the GPU has
// MIG instances, which a reset deletes.
type ResetGPU struct {
	PCI string `json:"pci"` // dddd:bb:dd.f, as in GPU
}

// GPUReset is the response to ResetGPU.
type GPUReset struct {
	UUID string `json:"uuid"`
	Said string `json:"said"` // what nvidia-smi printed, in one line
}

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// Validate returns an error if the request is invalid.
func (r ResetGPU) Validate() error {
	if !pciAddress.MatchString(r.PCI) {
		return fmt.Errorf("%q is not the PCI address of a GPU", r.PCI)
	}
	return nil
}
