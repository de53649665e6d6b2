//go:build !linux

package kmsg

import (
	"errors"
)

func Open(string) (Log, error) {
	return nil, errors.New("writing to the kernel log is supported only on Linux")
}
