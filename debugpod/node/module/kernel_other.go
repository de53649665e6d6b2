//go:build !linux

package module

func thisKernel() moduleKernel { return nil } // not called, because kmsg.Open fails first
