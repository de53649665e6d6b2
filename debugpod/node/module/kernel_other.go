//go:build !linux

package module

func thisKernel() moduleKernel { return nil } // kmsg.Open refuses before it is asked for anything
