package api

import (
	"fmt"
	"regexp"
)

// ResetGPU resets a GPU with the node's nvidia-smi. The helper refuses if a program has the GPU open, or if the GPU has
// MIG instances, because a reset deletes them.
type ResetGPU struct {
	PCI string `json:"pci"` // dddd:bb:dd.f, same format as in GPU
}

// GPUReset is the response to ResetGPU.
type GPUReset struct {
	UUID string `json:"uuid"`
	Said string `json:"said"` // output of nvidia-smi, in one line
}

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// Validate returns an error if the request is invalid.
func (r ResetGPU) Validate() error {
	if !pciAddress.MatchString(r.PCI) {
		return fmt.Errorf("invalid PCI address %q of a GPU", r.PCI)
	}
	return nil
}
