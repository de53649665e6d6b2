//go:build !linux

package inspect

import (
	"os"
)

func hostname(string) (string, error) { return os.Hostname() }
