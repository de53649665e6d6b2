//go:build kmod && linux

package kmod

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/kmod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// catalog returns every line that the program knows: each text of each code in the words of each driver, alone and as
// it comes with others, in each form of an address and with each kind of process.
func catalog(t *testing.T) []xid.Event {
	t.Helper()
	var all []xid.Event
	seen := map[string]bool{}
	add := func(e xid.Event, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if text := e.Text(); !seen[text] {
			seen[text] = true
			all = append(all, e)
		}
	}
	pci := xid.PCI{Bus: 0x17}
	for _, code := range xid.All() {
		for _, driver := range []xid.Generation{xid.R535, xid.R580, xid.R595} {
			for _, variant := range code.Variants {
				e, err := xid.New(code.Number, xid.Options{PCI: pci, Driver: driver, Variant: variant.Variant})
				add(e, err)
				e.PCI = xid.PCI{Domain: 0x10002, Bus: 0xff, Device: 0x1f}
				add(e, nil)
				e.Address = xid.AddressOld
				add(e, nil)
			}
			together := xid.Options{
				PCI: pci, Driver: driver, UUID: "GPU-455e672a-1aa1-4b62-9a4f-0e60a1b0f2c3", Serial: "1794625612345",
				Peers: []xid.PCI{{Bus: 0x65}},
			}
			if steps, err := xid.Cascade(code.Number, together); err == nil { // most come alone
				for _, step := range steps {
					add(step.Event, nil)
				}
			}
		}
	}
	for _, instance := range []xid.MIG{{On: true, GI: 5}, {On: true, GI: 5, HasCI: true, CI: 12}} {
		e, err := xid.New(94, xid.Options{PCI: pci, MIG: instance, Process: xid.Process{PID: 4711, Name: "python3"}})
		add(e, err)
		e.Process = xid.UnknownProcess()
		add(e, nil)
	}
	for _, code := range xid.SXids() {
		add(xid.NewSXid(code.Number, xid.Options{PCI: xid.PCI{Bus: 5}, Switch: 3}))
	}
	add(xid.NewSXid(20034, xid.Options{PCI: xid.PCI{Bus: 5}, Switch: 999}))
	add(xid.NewFallenOff(xid.Options{PCI: xid.PCI{Bus: 0xb3}}))
	add(xid.New(79, xid.Options{PCI: pci, Message: `100% of \x0a and "quotes", %s %n`}))
	add(xid.New(79,
		xid.Options{PCI: pci, Message: strings.Repeat("x", kmod.MaxRecord-len("NVRM: Xid (PCI:0000:17:00): 79, \n"))}))
	return all
}

// TestVMCatalog writes every line of the catalog and reads the log raw: each must be there as it would be of the
// driver, byte for byte, with facility 0, the driver's level and its flags but for c: see the comment on KERN_CONT in
// the module.
func TestVMCatalog(t *testing.T) {
	load(t, "")
	f, log := open(t), follow(t)
	codes := map[int]bool{}
	events := catalog(t)
	equal := 0
	for _, e := range events {
		if e.Kind == xid.KindXID {
			codes[e.Code] = true
		}
		want, err := xid.Record(e, xid.FormModule)
		if err != nil {
			t.Fatal(err)
		}
		if err := write(f, want.Text+"\n"); err != nil {
			t.Errorf("%q was refused: %v", want.Text, err)
			continue
		}
		got, ok := log.next(t, 5*time.Second)
		// A line of the kernel's own
		for ok && !strings.Contains(got.text, "NVRM: ") && !strings.Contains(got.text, "nvswitch") {
			got, ok = log.next(t, 5*time.Second)
		}
		if !ok {
			t.Errorf("%q is not in /dev/kmsg", want.Text)
			continue
		}
		if got.line != want.Raw(got.sequence, got.usec) {
			t.Errorf("got  %s\nwant %s", got.line, want.Raw(got.sequence, got.usec))
			continue
		}
		equal++
	}
	for _, code := range xid.All() {
		if !codes[code.Number] {
			t.Errorf("no line of XID %d was written", code.Number)
		}
	}
	fmt.Printf("\nRECORDS %d %d\n", equal, len(events)) // hack/test-kmod.sh adds them up
}

// What the driver does with KERN_CONT would put our text behind somebody's open record.
func TestVMIsNotGluedToAnOpenRecord(t *testing.T) {
	load(t, "")
	f, log := open(t), follow(t)
	toKmsg(t, "<3>OPEN") // without a newline, by this very task
	if err := write(f, "NVRM: Xid (PCI:0000:17:00): 79, alone\n"); err != nil {
		t.Fatal(err)
	}
	log.until(t, "the record", func(record raw) bool {
		return record.priority == 4 && record.text == "NVRM: Xid (PCI:0000:17:00): 79, alone"
	})
}

// A record may be written without its newline; two in one write, or an open one, may not be.
func TestVMOneWriteIsOneRecord(t *testing.T) {
	load(t, "")
	f, log := open(t), follow(t)
	if err := write(f, "NVRM: whole"); err != nil {
		t.Fatal(err)
	}
	log.until(t, "a record written without its newline", func(record raw) bool { return record.text == "NVRM: whole" })
	for _, two := range []string{"NVRM: one\nNVRM: two\n", "NVRM: one\n\n"} {
		if err := write(f, two); err == nil {
			t.Errorf("%q was taken", two)
		}
	}
}

// Both paths side by side, as docs/kmod.md shows them.
func TestVMSideBySide(t *testing.T) {
	load(t, "")
	f, log := open(t), follow(t)
	e, err := xid.New(79, xid.Options{PCI: xid.PCI{Bus: 0x17}})
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range []xid.Form{xid.FormKernel, xid.FormModule} {
		want, err := xid.Record(e, form)
		if err != nil {
			t.Fatal(err)
		}
		if form == xid.FormModule {
			err = write(f, want.Text+"\n")
		} else {
			toKmsg(t, string(want.Bytes()))
		}
		if err != nil {
			t.Fatal(err)
		}
		got := log.until(t, want.Text, func(record raw) bool { return record.text == want.Text })
		if got.line != want.Raw(got.sequence, got.usec) {
			t.Errorf("got  %s\nwant %s", got.line, want.Raw(got.sequence, got.usec))
		}
		fmt.Printf("\nSIDE %s /dev/kmsg: %s\n", form, got.line)
	}
}
