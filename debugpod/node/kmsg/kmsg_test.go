package kmsg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/nodetest"
)

// fakeLog is a kernel log in memory. Each Read is a record, as with the device.
type fakeLog struct {
	next     uint64
	queue    []func() (string, error)
	deadline time.Time
	closed   bool
	// wrote is called with each write; by default it only makes the record.
	wrote func(l *fakeLog, data string) error
}

func (l *fakeLog) Follow() (Reader, error) { return l, nil }

func (l *fakeLog) Write(data string) error {
	if l.wrote != nil {
		return l.wrote(l, data)
	}
	l.record(data)
	return nil
}

func (l *fakeLog) Stored(data string) (priority int, text string) { return api.Stored(data) }

func (l *fakeLog) record(data string) {
	priority, text := api.Stored(data)
	line := fmt.Sprintf("%d,%d,%d,-;%s\n", priority, l.next, l.next*1000, text)
	l.next++
	l.queue = append(l.queue, func() (string, error) { return line, nil })
}

func (l *fakeLog) fails(err error) {
	l.queue = append(l.queue, func() (string, error) { return "", err })
}

func (l *fakeLog) Read(p []byte) (int, error) {
	if len(l.queue) == 0 {
		time.Sleep(time.Until(l.deadline))
		return 0, os.ErrDeadlineExceeded
	}
	text, err := l.queue[0]()
	l.queue = l.queue[1:]
	return copy(p, text), err
}

func (l *fakeLog) SetReadDeadline(t time.Time) error { l.deadline = t; return nil }
func (l *fakeLog) Close() error                      { l.closed = true; return nil }

func same(n int, data string) []api.KmsgRecord {
	return slices.Repeat([]api.KmsgRecord{{Data: data}}, n)
}

func run(ctx context.Context, log *fakeLog, records []api.KmsgRecord) (
	written []api.WrittenKmsg, answers int, failure *api.Error,
) {
	failure = WriteTo(ctx, records, log, func(a api.Answer) error {
		written = append(written, a.Written...)
		answers++
		return nil
	})
	return written, answers, failure
}

func TestWriteRecords(t *testing.T) {
	const line = "<4>NVRM: Xid\n"
	denied := errors.New("permission denied")
	for name, tc := range map[string]struct {
		wrote func(*fakeLog, string) error
		want  api.Code
		count int
	}{
		"all found": {nil, "", 5},
		"records of others between": {func(l *fakeLog, data string) error {
			l.record("<4>NVRM: Xid 2\n")
			l.record("<5>NVRM: Xid\n") // the same text with another priority
			l.record(data)
			l.record("<6>other\n")
			return nil
		}, "", 5},
		"others' records are not understood": {func(l *fakeLog, data string) error {
			l.queue = append(l.queue, func() (string, error) { return "what", nil })
			l.record(data)
			return nil
		}, "", 5},
		"overrun, and found all the same": {func(l *fakeLog, data string) error {
			l.fails(ErrOverrun)
			l.record(data)
			return nil
		}, "", 5},
		"overrun, and lost": {func(l *fakeLog, data string) error {
			if l.next == 3 {
				l.fails(ErrOverrun)
				return nil
			}
			l.record(data)
			return nil
		}, api.CodeOverrun, 3},
		"dropped with success": {func(l *fakeLog, data string) error {
			if l.next < 2 {
				l.record(data)
			}
			return nil
		}, api.CodeNotProven, 2},
		"cut": {func(l *fakeLog, data string) error { l.record(data[:8] + "\n"); return nil }, api.CodeNotProven, 0},
		"write fails": {func(l *fakeLog, data string) error {
			if l.next == 4 {
				return denied
			}
			l.record(data)
			return nil
		}, api.CodeKmsg, 4},
		"read fails": {func(l *fakeLog, _ string) error { l.fails(denied); return nil }, api.CodeKmsg, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := &fakeLog{wrote: tc.wrote}
				written, _, failure := run(t.Context(), log, same(5, line))
				if (failure == nil) != (tc.want == "") || failure != nil && failure.Code != tc.want {
					t.Fatalf("got %v, want %q", failure, tc.want)
				}
				if failure != nil && !strings.Contains(failure.Message, fmt.Sprintf("record %d of 5", tc.count+1)) {
					t.Errorf("%q does not name the record", failure.Message)
				}
				if len(written) != tc.count {
					t.Fatalf("%d are proven, want %d", len(written), tc.count)
				}
				for i, w := range written {
					if w.Record != i || w.Text != "NVRM: Xid" || w.Priority != 12 ||
						i > 0 && w.Sequence <= written[i-1].Sequence {
						t.Errorf("record %d: %+v", i, w)
					}
				}
				if !log.closed {
					t.Error("the reader was not closed")
				}
			})
		})
	}
}

func TestWriteRecordsWaitsAndTellsInBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := same(4, "<4>x\n")
		for i := range records {
			records[i].Delay = 10 * time.Second
		}
		start := time.Now()
		written, answers, failure := run(t.Context(), &fakeLog{}, records)
		if failure != nil || len(written) != 4 {
			t.Fatalf("%v, %v", written, failure)
		}
		if took := time.Since(start); took != 30*time.Second {
			t.Errorf("took %v: the first delay counts from no write, each other from the one before", took)
		}
		if answers != 4 {
			t.Errorf("%d answers: each proof must be told before a long wait", answers)
		}
		for i, w := range written {
			if want := start.Add(time.Duration(i) * 10 * time.Second); !w.Time.Equal(want) {
				t.Errorf("record %d at %v, want %v", i, w.Time, want)
			}
		}
	})
}

func TestWriteRecordsStopsBetweenRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := same(100, "<4>x\n")
		for i := range records {
			records[i].Delay = time.Second
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(4500*time.Millisecond, func() { cancel(errors.New("told to")) })
		log := &fakeLog{}
		written, _, failure := run(ctx, log, records)
		if failure == nil || failure.Code != api.CodeInterrupted ||
			!strings.Contains(failure.Message, "5 of 100 records: told to") {
			t.Errorf("got %v", failure)
		}
		if len(written) != 5 || log.next != 5 {
			t.Errorf("%d are proven, %d were written", len(written), log.next)
		}
	})
}

func TestWriteRecordsInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		written, answers, failure := run(t.Context(), &fakeLog{}, same(1000, "<4>x\n"))
		if failure != nil || len(written) != 1000 || answers != 4 {
			t.Errorf("%d records in %d answers, %v", len(written), answers, failure)
		}
	})
}

func TestMayWriteKmsg(t *testing.T) {
	for name, tc := range map[string]struct {
		setting, cmdline string
		want             string
	}{
		"ratelimit":           {"ratelimit\n", "quiet", ""},
		"not there":           {"", "", ""},
		"off":                 {"off\n", "quiet", "sysctl -w kernel.printk_devkmsg=on"},
		"off since boot time": {"off\n", "quiet printk.devkmsg=off", "reboot"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := nodetest.Tree(t, map[string]string{"sys/kernel/printk_devkmsg": tc.setting, "cmdline": tc.cmdline})
			failure := MayWrite(hostfs.Host{Proc: dir})
			if tc.want == "" && failure == nil {
				return
			}
			if tc.want == "" || failure == nil || failure.Code != api.CodeDevkmsgOff ||
				!strings.Contains(failure.Message, tc.want) {
				t.Errorf("got %v, want %q", failure, tc.want)
			}
		})
	}
}
