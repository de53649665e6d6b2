//go:build shim

package shim

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
)

// xid returns the state of an XID on device 1, as the client makes it.
func xid(t *testing.T, number int) cudafault.State {
	t.Helper()
	s, err := cudafault.Fault{XID: number, Scope: cudafault.Scope{Devices: []int{1}}}.State("test-run",
		generations.Add(1), time.Now(), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// twoGPUs returns a disarmed pod with two GPUs and an actor in it.
func twoGPUs(t *testing.T, on platform) (*pod, *actor) {
	t.Helper()
	p := newPodOn(t, on)
	p.fake("FAKECUDA_DEVICES", "2")
	p.disarm()
	return p, p.actor()
}

// waited splits the answer of "wait": its code, how long it took, and the event.
func waited(t *testing.T, answer string) (code int, took time.Duration, event string) {
	t.Helper()
	var ms int
	if _, err := fmt.Sscanf(answer, "%d %d", &code, &ms); err != nil {
		t.Fatalf("wait: %q: %v", answer, err)
	}
	fields := strings.SplitN(answer, " ", 3)
	return code, time.Duration(ms) * time.Millisecond, fields[2]
}

// TestNVMLEvent holds what a device plugin waits for: the event of an XID comes to each set that its GPU was registered
// with before, once, wakes up who waits, and is counted as a trip.
func TestNVMLEvent(t *testing.T) {
	for _, on := range []platform{x86, arm} {
		t.Run(on.name, func(t *testing.T) {
			p, a := twoGPUs(t, on)
			a.want("events both 0 1", "0 0 0")
			a.want("events second 1", "0 0")
			a.want("events first 0", "0 0")
			a.want("events other 0 1", "0 0 0")
			a.tell("wait both 20000")
			p.arm(xid(t, 48))
			code, took, event := waited(t, a.answer("wait both"))
			if code != 0 || event != "1 8 48 ffffffffffffffff" || took > 10*time.Second {
				t.Errorf("the set with both GPUs: code %d after %s, event %s", code, took, event)
			}
			if code, _, event := waited(t, a.ask("wait second 100 v1")); code != 0 || event != "1 8 48 7777" {
				t.Errorf("by the first version, which knows no instances: code %d, event %s", code, event)
			}
			for _, set := range []string{"both", "second", "first", "other"} {
				if code, took, event := waited(t, a.ask("wait %s 300", set)); code != 10 || event != "-" ||
					took < 299*time.Millisecond {
					t.Errorf("set %s afterwards: code %d after %s, event %s; want a timeout in time", set, code, took, event)
				}
			}
			a.want("events late 0 1", "0 0 0")
			if code, _, event := waited(t, a.ask("wait late 100")); code != 10 {
				t.Errorf("a set of after the event: code %d, event %s", code, event)
			}
			if got := p.process(a.pid); got.Trips != 2 || got.Function != "nvmlEventSetWait" || got.LastError != 0 {
				t.Errorf("reported: %+v, want 2 trips", got)
			}
			p.arm(xid(t, 94))
			eventually(t, "the event of the next fault", 5*time.Second, func() bool {
				_, _, event := waited(t, a.ask("wait late 200"))
				return event == "1 8 94 ffffffffffffffff"
			})
			a.want("noevents both", "0")
		})
	}
}

// TestNVMLEventOfTheDriver holds that real events come through, armed or not.
func TestNVMLEventOfTheDriver(t *testing.T) {
	p := newPod(t)
	p.fake("FAKECUDA_EVENT", "43:300")
	p.arm(all(cudafault.State{NVMLXID: 48, Devices: []int{5}}))
	a := p.actor()
	a.want("events own 0", "0 0")
	if code, took, event := waited(t, a.ask("wait own 5000")); code != 0 || event != "0 8 43 ffffffffffffffff" ||
		took > 4*time.Second {
		t.Errorf("code %d after %s, event %s", code, took, event)
	}
}

// TestNVMLWaitOnALostGPU protects logs from a storm: a plugin that waits again at once, without a pause, gets one error
// for each of its own timeouts. Sets without the GPU go on.
func TestNVMLWaitOnALostGPU(t *testing.T) {
	p, a := twoGPUs(t, x86)
	a.want("events both 0 1", "0 0 0")
	a.want("events first 0", "0 0")
	a.want("events other 0 1", "0 0 0")
	a.want("events empty", "0")
	a.tell("wait both 20000")
	p.arm(xid(t, 79))
	if code, took, _ := waited(t, a.answer("wait both")); code != 15 || took > 10*time.Second {
		t.Errorf("who waits when the GPU is lost: code %d after %s, want 15 at once", code, took)
	}
	if code, took, _ := waited(t, a.ask("wait other 20000")); code != 15 || took > 10*time.Second {
		t.Errorf("a set that waits for other events of the GPU: code %d after %s, want 15 at once", code, took)
	}
	if code, _, _ := waited(t, a.ask("wait empty 50")); code != 10 {
		t.Errorf("an empty set: code %d, want 10", code)
	}
	before := p.process(a.pid).Trips
	for range 3 {
		if code, took, _ := waited(t, a.ask("wait both 400")); code != 15 || took < 399*time.Millisecond {
			t.Errorf("code %d after %s, want 15 after the timeout", code, took)
		}
		if code, _, _ := waited(t, a.ask("wait first 50")); code != 10 {
			t.Errorf("the set without the GPU: code %d, want 10", code)
		}
	}
	if got := p.process(a.pid).Trips - before; got != 3 {
		t.Errorf("%d trips, want 3", got)
	}
	a.tell("wait both 4000")
	p.disarm()
	if code, took, _ := waited(t, a.answer("wait both")); code != 10 || took < 3999*time.Millisecond {
		t.Errorf("disarmed while it sleeps: code %d after %s, want a timeout in time", code, took)
	}
}

// TestNVMLCounters holds that all of NVML's counters tell the same story of an XID, that only its GPU has it, and that
// the values are the real ones when the fault is over.
func TestNVMLCounters(t *testing.T) {
	const healthy = "0 errors 0 0 0 0 corrected 0 0 rows 0 0 0, 0 0 0, 0 0 0 banks 640 0"
	for number, want := range map[int]string{
		48: "0 errors 1 1 1 1 corrected 0 0 rows 0 0 0, 0 0 0, 0 0 0 banks 640 0",
		63: "0 errors 0 0 0 0 corrected 0 0 rows 1 1 0, 1 1 0, 1 1 0 banks 639 1",
		64: "0 errors 0 0 0 0 corrected 0 0 rows 0 0 1, 0 0 1, 0 0 1 banks 640 0",
		94: "0 errors 1 1 1 1 corrected 0 0 rows 0 0 0, 0 0 0, 0 0 0 banks 640 0",
	} {
		t.Run(fmt.Sprint(number), func(t *testing.T) {
			p, a := twoGPUs(t, x86)
			a.want("nvml", a.ask("nvml"))
			a.want("counters 1", healthy)
			p.arm(xid(t, number))
			eventually(t, want, 5*time.Second, func() bool { return a.ask("counters 1") == want })
			a.want("counters 0", healthy)
			p.disarm()
			eventually(t, healthy, 5*time.Second, func() bool { return a.ask("counters 1") == healthy })
		})
	}
}

// TestNVMLOfANode holds that the fake NVML reports the GPUs that the simulated driver of a node lists, in PCI order, as
// test/peers/device-plugin needs it.
func TestNVMLOfANode(t *testing.T) {
	proc := folder(t)
	for address, text := range map[string]string{
		"6100:37:00.0": "Model: \t\t NVIDIA H200\nIRQ:   \t\t 180\nGPU UUID: \t GPU-b\nDevice Minor: \t 0\nGPU Excluded:\t No\n",
		"6100:2f:00.0": "Model: \t\t NVIDIA H200\nIRQ:   \t\t 181\nGPU UUID: \t GPU-a\nDevice Minor: \t 1\nGPU Excluded:\t No\n",
	} {
		if err := os.MkdirAll(filepath.Join(proc, "gpus", address), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, "gpus", address, "information"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := newPod(t)
	p.fake("FAKECUDA_PROC", proc)
	p.disarm()
	a := p.actor()
	a.want("identity 0", "1 00006100:2F:00.0 GPU-a NVIDIA H200, 1 0")
	a.want("identity 1", "0 00006100:37:00.0 GPU-b NVIDIA H200, 1 0")
	_, a = twoGPUs(t, x86)
	a.want("identity 1", "1 00000000:18:00.0 GPU-66616b65-6375-6461-0000-000000000001 Fake CUDA Device, 1 0")
}

// TestNVMLOfALostGPU holds that no query of a lost GPU is answered, by whatever function a monitor asks, and that those
// of the other GPU are.
func TestNVMLOfALostGPU(t *testing.T) {
	p, a := twoGPUs(t, x86)
	a.want("nvml", a.ask("nvml"))
	healthy := a.ask("everything 0")
	a.want("everything 1", healthy)
	p.arm(xid(t, 79))
	eventually(t, "one code, 15", 5*time.Second,
		func() bool { return strings.HasPrefix(a.ask("everything 1"), "15*") })
	if got := a.ask("everything 1"); strings.Contains(got, " ") {
		t.Errorf("the lost GPU: %s, want 15 of all", got)
	}
	a.want("everything 0", healthy)
}

// TestNVMLResetRequired holds what is known of a GPU after an uncontained error (scitix/sichek#121,
// leptonai/gpud#1133): it has a name and counters that can be read, the recovery action is a reset, and what is
// measured now fails.
func TestNVMLResetRequired(t *testing.T) {
	const healthy = "utilization 0 name 0 reset 0 action 0"
	for _, number := range []int{95, 140} {
		p, a := twoGPUs(t, x86)
		a.want("nvml", a.ask("nvml"))
		a.want("recovery 1", healthy)
		p.arm(xid(t, number))
		const want = "utilization 16 name 0 reset 1 action 1"
		eventually(t, want, 5*time.Second, func() bool { return a.ask("recovery 1") == want })
		a.want("counters 1", "0 errors 1 1 1 1 corrected 0 0 rows 0 0 0, 0 0 0, 0 0 0 banks 640 0")
		a.want("recovery 0", healthy)
		p.disarm()
		eventually(t, healthy, 5*time.Second, func() bool { return a.ask("recovery 1") == healthy })
	}
}

// TestOneDeviceOfTwo protects the work on another GPU in the same process: a poison, a pending error and a hang belong
// to the device of the fault. Without a current context the driver's own answer comes.
func TestOneDeviceOfTwo(t *testing.T) {
	for name, s := range map[string]cudafault.State{
		"XID 48": xid(t, 48), "XID 79": xid(t, 79),
		"sticky": all(cudafault.State{Error: 719, Flags: cudafault.FlagSticky, Classes: launches, Devices: []int{1}}),
	} {
		t.Run(name, func(t *testing.T) {
			p, a := twoGPUs(t, x86)
			a.want("start 1", "0")
			p.arm(s)
			eventually(t, "the error", 5*time.Second, func() bool {
				a.ask("launch")
				return a.ask("sync") != "0*1"
			})
			a.want("device 0", "0")
			a.want("sync 3", "0*3")
			a.want("alloc plain 4096", "0")
			if name == "XID 79" {
				a.want("device 1", "999") // no context can be made on a lost GPU
				return
			}
			a.want("device 1", "0")
			if got := a.ask("sync 3"); strings.HasPrefix(got, "0*") {
				t.Errorf("device 1 goes on: %s", got)
			}
		})
	}
	t.Run("hang", func(t *testing.T) {
		p, a := twoGPUs(t, x86)
		a.want("start 1", "0")
		p.arm(all(cudafault.State{HangClasses: cudafault.ClassSync, Classes: cudafault.ClassSync, Devices: []int{1}}))
		waitGeneration(t, p, a, "infonull")
		a.want("background sync", "0")
		a.want("device 0", "0")
		a.want("sync 3", "0*3")
		a.want("background", "running")
		p.disarm()
		a.want("join", "0")
	})
}
