package kmsg

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// Parse parses one record as returned by read(2) of /dev/kmsg: "priority,sequence,microseconds,flags[,more];text\n",
// followed by property lines that start with a space (see Documentation/ABI/testing/dev-kmsg). It does not set Time.
func Parse(raw string) (api.WrittenKmsg, error) {
	head, body, found := strings.Cut(raw, ";")
	if !found {
		return api.WrittenKmsg{}, errors.New("invalid kernel log record: no semicolon")
	}
	fields := strings.Split(head, ",")
	if len(fields) < 3 {
		return api.WrittenKmsg{}, fmt.Errorf("invalid kernel log record: begins with %q", head)
	}
	priority, err := strconv.ParseUint(fields[0], 10, 31)
	if err != nil {
		return api.WrittenKmsg{}, fmt.Errorf("parse the priority of a kernel log record: %w", err)
	}
	sequence, err := strconv.ParseUint(fields[1], 10, 64)
	if err != nil {
		return api.WrittenKmsg{}, fmt.Errorf("parse the sequence number of a kernel log record: %w", err)
	}
	// 53 bits of microseconds are 285 years, which fit into a Duration.
	uptime, err := strconv.ParseUint(fields[2], 10, 53)
	if err != nil {
		return api.WrittenKmsg{}, fmt.Errorf("parse the timestamp of a kernel log record: %w", err)
	}
	text, _, _ := strings.Cut(body, "\n")
	return api.WrittenKmsg{
		Sequence: sequence,
		Uptime:   time.Duration(uptime) * time.Microsecond,
		Priority: int(priority),
		Text:     text,
	}, nil
}
