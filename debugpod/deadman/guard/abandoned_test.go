//go:build linux

package guard

import (
	"errors"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// A record whose helper died before its dead man was armed stands for no change: it must not keep others from the file
// for ever. While it is fresh its helper may still be about to begin.
func TestAnAbandonedRecordClaimsNothing(t *testing.T) {
	w := newWorld(t)
	change := deadman.Change{
		TTL: time.Hour, Service: w.service(),
		Files: []deadman.File{w.edit("etc/config.toml", original, original+"# ours\n")},
	}
	if _, err := w.prepare(t.Context(), "runtime-abandoned", change, process{}); err != nil {
		t.Fatal(err)
	}
	_, err := Change(t.Context(), w.Host, w.run, change, func(deadman.Status) error { return nil })
	var coded *Error
	if !errors.As(err, &coded) || coded.Code != CodeExists {
		t.Fatalf("a fresh record does not claim its file: %v", err)
	}
	// The revert of the run that was refused: the node has no record of it, whoever claims the file.
	if r := w.restore(deadman.Restore{}); !r.RecordMissing || len(r.Files) != 0 {
		t.Errorf("the revert of the refused run: %+v", r)
	}
	w.times.start = time.Microsecond
	w.change(change)
	w.restore(deadman.Restore{})
}
