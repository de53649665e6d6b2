package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/nodetest"
)

// TestRealKernelLog writes a thousand records, a hundred times what the kernel takes of one open file in five seconds.
func TestRealKernelLog(t *testing.T) {
	host := nodetest.RealKernelLog(t)
	records := make([]api.KmsgRecord, 1000)
	for i := range records {
		// In pairs of the same text
		records[i].Data = fmt.Sprintf("<7>gpu-fault-test: \\ \t é %d of pid %d\n", i/2, os.Getpid())
	}
	line, err := api.Request{Protocol: api.Protocol, WriteKmsg: &api.WriteKmsg{Records: records}}.Encode()
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
	var written []api.WrittenKmsg
	for dec := json.NewDecoder(&out); ; {
		var a api.Answer
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
