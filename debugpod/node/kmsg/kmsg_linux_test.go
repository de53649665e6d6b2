package kmsg

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/nodetest"
)

// TestRealLongest holds that what Validate takes comes back whole: the longest, and the one that escapes make longest.
func TestRealLongest(t *testing.T) {
	host := nodetest.RealKernelLog(t)
	records := []api.KmsgRecord{
		{Data: "<7>" + strings.Repeat("x", api.MaxKmsgRecord-len("<7>\n")) + "\n"},
		{Data: "<7>" + strings.Repeat("\x01", api.MaxKmsgShown/4) + "\n"},
	}
	if err := (api.WriteKmsg{Records: records}).Validate(); err != nil {
		t.Fatal(err)
	}
	var written []api.WrittenKmsg
	failure := Write(t.Context(), records, host, func(a api.Answer) error {
		written = append(written, a.Written...)
		return nil
	})
	if failure != nil || len(written) != len(records) {
		t.Fatalf("%v, %v", written, failure)
	}
}

func TestDeviceIsNeverMade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	err := kmsgDevice{path}.Write("<7>x\n")
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("writing made a plain file")
	}
	failure := Write(context.Background(), []api.KmsgRecord{{Data: "<7>x\n"}},
		hostfs.Host{Proc: t.TempDir(), Kmsg: path}, nil)
	if failure == nil || failure.Code != api.CodeKmsg {
		t.Errorf("got %v", failure)
	}
}
