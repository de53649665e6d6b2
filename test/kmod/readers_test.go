//go:build kmod && linux

package kmod

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// entry is what journald keeps of a line, as far as its readers go by it.
type entry struct {
	Transport  string `json:"_TRANSPORT"`
	Facility   string `json:"SYSLOG_FACILITY"`
	Identifier string `json:"SYSLOG_IDENTIFIER"`
	Priority   string `json:"PRIORITY"`
	Message    string `json:"MESSAGE"`
}

// journal waits until journald has the entry whose message has this word.
func journal(t *testing.T, word string) entry {
	t.Helper()
	for until := time.Now().Add(30 * time.Second); time.Now().Before(until); time.Sleep(200 * time.Millisecond) {
		out, err := exec.Command("/bin/journalctl", "-o", "json", "--no-pager", "-n", "50").Output()
		if err != nil {
			continue // it has just begun
		}
		for line := range strings.Lines(string(out)) {
			var e entry
			if json.Unmarshal([]byte(line), &e) == nil && strings.Contains(e.Message, word) {
				return e
			}
		}
	}
	t.Fatalf("journald has no entry with %q", word)
	return entry{}
}

// TestVMReaderJournald: of a line of the module journald makes what it makes of the driver's. Of user space's it shows
// another facility.
func TestVMReaderJournald(t *testing.T) {
	load(t, "")
	f := open(t)
	if err := write(f, "NVRM: Xid (PCI:0000:17:00): 79, through the module\n"); err != nil {
		t.Fatal(err)
	}
	toKmsg(t, "<4>kernel: NVRM: Xid (PCI:0000:17:00): 79, through kmsg\n")
	got := journal(t, "through the module")
	if diff := cmp.Diff(
		entry{"kernel", "0", "kernel", "4", "NVRM: Xid (PCI:0000:17:00): 79, through the module"}, got,
	); diff != "" {
		t.Error(diff)
	}
	other := journal(t, "through kmsg")
	if diff := cmp.Diff(
		entry{"kernel", "1", "kernel", "4", "NVRM: Xid (PCI:0000:17:00): 79, through kmsg"}, other,
	); diff != "" {
		t.Errorf("the other way: %s", diff)
	}
	for name, e := range map[string]entry{"kernel": other, "module": got} {
		shown, _ := json.Marshal(e) // strings always marshal
		fmt.Printf("\nSIDE %s journald: %s\n", name, shown)
	}
	const record = "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\nNVRM: fallen off the bus and is not responding to commands."
	if err := write(f, record+"\n"); err != nil {
		t.Fatal(err)
	}
	if got := journal(t, "10de:26b5"); got.Message != record || got.Facility != "0" {
		t.Errorf("a record of several lines became %+v", got)
	}
}

// TestVMReaderRsyslog: with Debian's own settings rsyslog drops what user space wrote into the kernel log, and keeps
// what the module did.
func TestVMReaderRsyslog(t *testing.T) {
	load(t, "")
	f := open(t)
	read := func() string {
		text, _ := os.ReadFile("/var/log/kern.log") // it comes with the first line
		return string(text)
	}
	toKmsg(t, "<4>kernel: NVRM: Xid (PCI:0000:17:00): 79, rsyslog must not see this\n")
	if err := write(f, "NVRM: Xid (PCI:0000:17:00): 79, rsyslog must see this\n"); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(30 * time.Second); !strings.Contains(read(), "rsyslog must see this"); time.Sleep(
		100 * time.Millisecond,
	) {
		if time.Now().After(until) {
			t.Fatalf("the module's line is not in kern.log:\n%s", read())
		}
	}
	// It came later, so that the other would be there by now.
	if strings.Contains(read(), "rsyslog must not see this") {
		t.Error("user space's line is in kern.log: this rsyslog does not filter, so the test shows nothing")
	}
	for line := range strings.Lines(read()) {
		if strings.Contains(line, "rsyslog must see this") {
			if !strings.Contains(line, " kernel: [") || !strings.Contains(line, "] NVRM: Xid (PCI:0000:17:00): 79, ") {
				t.Errorf("it is not written as a line of the kernel: %s", line)
			}
			fmt.Printf("\nSIDE module kern.log: %s\n", strings.TrimSpace(line))
		}
	}
}
