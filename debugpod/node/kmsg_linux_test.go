package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// realHost skips where this machine's kernel log cannot be used.
func realHost(t *testing.T) Host {
	t.Helper()
	host := Host{Root: "/", Proc: "/proc", Kmsg: "/dev/kmsg"}
	if failure := mayWriteKmsg(host); failure != nil {
		t.Skip(failure.Message)
	}
	for _, flag := range []int{os.O_RDONLY, os.O_WRONLY} {
		f, err := os.OpenFile(host.Kmsg, flag, 0)
		if err != nil {
			t.Skipf("this needs root, and the kernel log: %v", err)
		}
		_ = f.Close()
	}
	return host
}

// TestRealKernelLog writes a thousand records, a hundred times what the kernel takes of one open file in five seconds.
func TestRealKernelLog(t *testing.T) {
	host := realHost(t)
	records := make([]KmsgRecord, 1000)
	for i := range records {
		// In pairs of the same text
		records[i].Data = fmt.Sprintf("<7>gpu-fault-test: \\ \t é %d of pid %d\n", i/2, os.Getpid())
	}
	line, err := Request{Protocol: Protocol, WriteKmsg: &WriteKmsg{Records: records}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	in, client := io.Pipe()
	defer func() { _ = client.Close() }()
	go func() { _, _ = client.Write(line) }()
	var out bytes.Buffer
	start := time.Now()
	if err := Serve(t.Context(), in, &out, host); err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	var written []WrittenKmsg
	for dec := json.NewDecoder(&out); ; {
		var a Answer
		if err := dec.Decode(&a); err != nil {
			t.Fatal(err)
		}
		written = append(written, a.Written...)
		if a.Done {
			break
		}
	}
	if len(written) != len(records) {
		t.Fatalf("%d records are proven", len(written))
	}
	for i, w := range written {
		if i > 0 && w.Sequence <= written[i-1].Sequence {
			t.Errorf("record %d has sequence %d after %d", i, w.Sequence, written[i-1].Sequence)
		}
		if w.Time.Before(start.Round(0)) || w.Uptime <= 0 || w.Priority != 1<<3|7 {
			t.Errorf("record %d: %+v", i, w)
		}
	}
	t.Logf("1,000 records, sequences %d to %d, proven in %v", written[0].Sequence, written[999].Sequence, took)
	// A shared descriptor is rate-limited to 10 records in 5 seconds, which makes 500 s; without that, it is 0.1 s on
	// an idle machine.
	if took > 2*time.Minute {
		t.Errorf("1,000 records took %v: the kernel limits their rate", took)
	}
}

// TestRealLongest holds that what Validate takes comes back whole: the longest, and the one that escapes make longest.
func TestRealLongest(t *testing.T) {
	host := realHost(t)
	records := []KmsgRecord{
		{Data: "<7>" + strings.Repeat("x", MaxKmsgRecord-len("<7>\n")) + "\n"},
		{Data: "<7>" + strings.Repeat("\x01", maxShown/4) + "\n"},
	}
	if err := (WriteKmsg{Records: records}).Validate(); err != nil {
		t.Fatal(err)
	}
	var written []WrittenKmsg
	failure := writeKmsg(t.Context(), records, host, func(a Answer) error {
		written = append(written, a.Written...)
		return nil
	})
	if failure != nil || len(written) != len(records) {
		t.Fatalf("%v, %v", written, failure)
	}
}

func TestDeviceIsNeverMade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	err := kmsgDevice{path}.write("<7>x\n")
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("writing made a plain file")
	}
	failure := writeKmsg(context.Background(), []KmsgRecord{{Data: "<7>x\n"}}, Host{Proc: t.TempDir(), Kmsg: path}, nil)
	if failure == nil || failure.Code != CodeKmsg {
		t.Errorf("got %v", failure)
	}
}

func TestHostnameOfNamespace(t *testing.T) {
	want, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	got, err := hostname("/proc/self/ns/uts")
	if errors.Is(err, os.ErrPermission) {
		t.Skipf("this needs root: %v", err)
	}
	if err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}
