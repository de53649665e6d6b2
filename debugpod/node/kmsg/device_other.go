//go:build !linux

package kmsg

import (
	"errors"
)

func Open(string) (Log, error) {
	return nil, errors.New("only Linux has a kernel log that can be written")
}
