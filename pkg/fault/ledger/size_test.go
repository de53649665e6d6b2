package ledger

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// fleet returns a run on n nodes, as it is planned or as it ends, with what differs between real nodes.
func fleet(n int, ended bool) Run {
	random := rand.New(rand.NewPCG(uint64(n), 1))
	start := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	run := Run{ID: "xid-abc123", Fault: "xid", Summary: "XID 79 on GPU 0", Created: start, Phase: Planned}
	for i := range n {
		step := Step{
			ID: fmt.Sprint(i + 1), Action: "write XID 79 on GPU 0 to the kernel log", State: StatePlanned,
			Target: Target{Kind: "Node", Name: fmt.Sprintf("ip-10-%d-%d-%d.ec2.internal", random.IntN(256),
				random.IntN(256), random.IntN(256)), UID: uuid(random)},
			Undo: Undo{Kind: "kernel-log"},
		}
		if ended {
			step.State = StateProven
			step.Started = start.Add(time.Duration(random.IntN(1e6)) * time.Millisecond)
			step.Ended = step.Started.Add(time.Duration(random.IntN(3000)) * time.Millisecond)
			step.Evidence = []Evidence{{
				Source: fmt.Sprintf("/dev/kmsg sequence %d", random.IntN(1e6)),
				Text: fmt.Sprintf("<4>kernel: NVRM: Xid (PCI:0000:%02x:00): 79, pid=%d, name=python, GPU has fallen off the bus.",
					random.IntN(256), random.IntN(1e6)),
				Time: step.Ended,
			}}
		}
		run.Steps = append(run.Steps, step)
	}
	return run
}

func uuid(random *rand.Rand) string {
	return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", random.Uint32(), random.IntN(1<<16), random.IntN(1<<16),
		random.IntN(1<<16), random.Int64N(1<<48))
}

// The record of one run on 5,000 nodes fits into its ConfigMap, from the plan to the end, and is read back as it was.
// That of a run on ten nodes stays readable with kubectl.
func TestARecordOfAFleetFits(t *testing.T) {
	t.Parallel()
	for _, n := range []int{10, 5000} {
		for _, ended := range []bool{false, true} {
			limit := MaxStored
			if !ended {
				limit = MaxStored - max(roomToEnd, resultSize*n)
			}
			run := fleet(n, ended)
			cm, err := encode(run, nil, limit)
			if err != nil {
				t.Errorf("%d nodes, ended: %t: %v", n, ended, err)
				continue
			}
			text, _ := json.Marshal(run)
			t.Logf("%d nodes, ended: %t: %d KiB as JSON, %d KiB stored as binary data", n, ended, len(text)>>10,
				len(cm.BinaryData[gzipKey])>>10)
			if _, plain := cm.Data[dataKey]; plain != (n == 10) {
				t.Errorf("%d nodes: plain: %t", n, plain)
			}
			back, err := decode(cm)
			if err != nil || len(back.Steps) != n || fmt.Sprint(back.Steps[n-1]) != fmt.Sprint(run.Steps[n-1]) {
				t.Errorf("%d nodes: read back %d steps, %v", n, len(back.Steps), err)
			}
		}
	}
}

// A record that shrinks again, or grows, is stored in one way at a time, and a record that somebody wrote by hand can
// neither take all memory nor hide a second record.
func TestACompressedRecordIsUntrusted(t *testing.T) {
	t.Parallel()
	large, err := encode(fleet(1000, true), nil, MaxStored)
	if err != nil {
		t.Fatal(err)
	}
	small, err := encode(fleet(1, true), large, MaxStored)
	if err != nil || small.BinaryData != nil || small.Data[dataKey] == "" {
		t.Errorf("a record that became small: %v, %v", small.BinaryData, err)
	}
	zip := func(text []byte) []byte {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		_, _ = w.Write(text)
		_ = w.Close()
		return out.Bytes()
	}
	for name, test := range map[string]struct {
		data   map[string]string
		binary map[string][]byte
		want   string
	}{
		"bomb":      {nil, map[string][]byte{gzipKey: zip(make([]byte, 100<<20))}, "too large"},
		"both":      {map[string]string{dataKey: "{}"}, map[string][]byte{gzipKey: zip([]byte("{}"))}, "both keys"},
		"not gzip":  {nil, map[string][]byte{gzipKey: []byte("{}")}, "run.json.gz"},
		"truncated": {nil, map[string][]byte{gzipKey: large.BinaryData[gzipKey][:1000]}, "run.json.gz"},
		"no record": {nil, map[string][]byte{"other": nil}, "no key run.json"},
	} {
		cm := large.DeepCopy()
		cm.Data, cm.BinaryData = test.data, test.binary
		if _, err := decode(cm); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, wanted an error with %q", name, err, test.want)
		}
	}
}

// Whatever is in a ConfigMap, reading it ends without a panic, and what is read can be stored again.
func FuzzDecode(f *testing.F) {
	for _, n := range []int{1, 200} {
		cm, err := encode(fleet(n, true), nil, MaxStored)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(cm.Data[dataKey], cm.BinaryData[gzipKey], true)
	}
	f.Fuzz(func(t *testing.T, plain string, packed []byte, summed bool) {
		cm := &corev1.ConfigMap{}
		cm.Name = "xid-abc123"
		if plain != "" {
			cm.Data = map[string]string{dataKey: plain}
		}
		if packed != nil {
			cm.BinaryData = map[string][]byte{gzipKey: packed}
		}
		if text, err := get(cm); err == nil && summed {
			cm.Annotations = map[string]string{AnnotationSum: patch.Sum(text)}
		}
		run, err := decode(cm)
		if err != nil {
			return
		}
		if _, err := encode(run, nil, MaxSize); err != nil {
			t.Errorf("a record that was read cannot be stored: %v", err)
		}
	})
}

// While a run is in progress, its evidence cannot take the space that its end needs.
func TestARunThatIsFullCanBeClosed(t *testing.T) {
	t.Parallel()
	random := make([]byte, MaxStored)
	_, _ = rand.NewChaCha8([32]byte{}).Read(random)
	run := fleet(1, true)
	for _, test := range []struct {
		phase Phase
		size  int
		fits  bool
	}{
		{Applying, 800 << 10, true}, {Applying, 940 << 10, false},
		{Reverted, 940 << 10, true}, {Reverted, 1000 << 10, false},
	} {
		// Once compressed, the text has 7 % more than size.
		run.Phase, run.Message = test.phase, hex.EncodeToString(random[:test.size])
		if _, err := encode(run, nil, limitOf(run)); (err == nil) != test.fits {
			t.Errorf("%d KiB in phase %s: %v, wanted it to fit: %t", test.size>>10, test.phase, err, test.fits)
		}
	}
}
