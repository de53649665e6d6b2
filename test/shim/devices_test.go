//go:build shim

package shim

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
)

// TestMemoryLimit: a device that is smaller than it is: allocations of every kind fail with 2 beyond it, and
// cuMemGetInfo, cuDeviceTotalMem and NVML tell the same story. Memory that is freed can be had again.
func TestMemoryLimit(t *testing.T) {
	const mib = 1 << 20
	for _, on := range []platform{x86, arm} {
		for _, kind := range []string{"plain", "async", "pool", "create", "pitch", "array"} {
			t.Run(on.name+"/"+kind, func(t *testing.T) {
				p := newPodOn(t, on)
				p.fake("FAKECUDA_MEMORY", strconv.Itoa(16<<30)) // a real context alone has more than the limit
				p.arm(all(cudafault.State{MemLimit: 64 * mib}))
				a := p.actor()
				a.want("start", "0")
				a.want("total 0", fmt.Sprintf("0 %d", 64*mib))
				a.want(fmt.Sprintf("alloc %s %d", kind, 65*mib), "2")
				var free, total uint64
				for i := range 3 {
					a.want(fmt.Sprintf("alloc %s %d", kind, 20*mib), "0")
					got := a.ask("info")
					if _, err := fmt.Sscanf(got, "0 %d %d", &free, &total); err != nil || total != 64*mib ||
						free > uint64(64-20*(i+1))*mib ||
						free < uint64(64-20*(i+1)-1)*mib {
						t.Errorf("after %d of 20 MiB: %s", i+1, got)
					}
				}
				a.want(fmt.Sprintf("alloc %s %d", kind, 20*mib), "2")
				nvml := a.ask("nvml")
				if want := fmt.Sprintf(
					"memory 0:%d:%d:%d memory2 0:%d:%d:%d", total, free, total-free, total, free, total-free,
				); !strings.HasSuffix(nvml, want) {
					t.Errorf("NVML: %s, want %s", nvml, want)
				}
				a.want("free", "0")
				a.want(fmt.Sprintf("alloc %s %d", kind, 60*mib), "0")
				a.want("launch 3", "0*3")
				a.want("free", "0")
				p.disarm()
				eventually(t, "the device has its own size again", 5*time.Second,
					func() bool { return a.ask("total 0") == fmt.Sprintf("0 %d", 16<<30) })
				a.want(fmt.Sprintf("alloc %s %d", kind, 100*mib), "0")
			})
		}
	}
}

// TestMemoryLimitBelowWhatIsUsed: a device that is smaller than what is in use is full, and no more than full.
func TestMemoryLimitBelowWhatIsUsed(t *testing.T) {
	p := newPod(t)
	p.fake("FAKECUDA_MEMORY", strconv.Itoa(16<<30))
	a := p.actor()
	a.want("start", "0")
	a.want(fmt.Sprintf("alloc plain %d", 100<<20), "0")
	p.arm(all(cudafault.State{MemLimit: 64 << 20}))
	const full = "memory 0:67108864:0:67108864 memory2 0:67108864:0:67108864"
	eventually(t, full, 5*time.Second, func() bool { return strings.HasSuffix(a.ask("nvml"), full) })
	a.want("info", fmt.Sprintf("0 0 %d", 64<<20))
}

// TestMemoryLimitManaged: managed memory may exceed what is free, since the driver moves its pages, but not the device.
func TestMemoryLimitManaged(t *testing.T) {
	p := newPod(t)
	p.fake("FAKECUDA_MEMORY", strconv.Itoa(16<<30))
	p.arm(all(cudafault.State{MemLimit: 64 << 20}))
	a := p.actor()
	a.want("start", "0")
	for range 3 {
		a.want(fmt.Sprintf("alloc managed %d", 60<<20), "0")
	}
	a.want(fmt.Sprintf("alloc managed %d", 65<<20), "2")
}

// TestMemoryLimitAbove: a limit above what the device has changes nothing.
func TestMemoryLimitAbove(t *testing.T) {
	p := newPod(t)
	p.fake("FAKECUDA_MEMORY", strconv.Itoa(1<<30))
	p.arm(all(cudafault.State{MemLimit: 8 << 30}))
	a := p.actor()
	a.want("start", "0")
	a.want("total 0", fmt.Sprintf("0 %d", 1<<30))
	if got := a.ask("info"); !strings.HasSuffix(got, fmt.Sprint(" ", 1<<30)) {
		t.Errorf("info: %s", got)
	}
	a.want(fmt.Sprintf("alloc plain %d", 2<<30), "2") // the driver's own
}

// TestHideDevices: hidden devices are not there, for CUDA and NVML alike; when all are, cuInit says so, as a real
// driver does.
func TestHideDevices(t *testing.T) {
	p := newPod(t)
	p.fake("FAKECUDA_DEVICES", "4")
	p.arm(all(cudafault.State{Hide: []int{1, 3}}))
	a := p.actor()
	a.want("start 1", "0")
	a.want("count", "0 2")
	a.want("device 2", "101")
	if got := a.ask("nvml"); !strings.HasPrefix(got, "init 0 count 0:2 handle 0 ") {
		t.Errorf("NVML: %s", got)
	}
	p.arm(all(cudafault.State{Hide: []int{0, 1, 2, 3}}))
	b := p.actor()
	b.want("start", "100")
	p.disarm()
	c := p.actor()
	c.want("start", "0")
	c.want("count", "0 4")
}

// TestCorruption: data from the device has as many wrong bits as the shim says that it flipped, in as many copies as
// its numbers predict, be the copy synchronous or not; and what runs after an asynchronous copy in its stream sees the
// same as the program does later.
func TestCorruption(t *testing.T) {
	const n = 200
	for _, on := range []platform{x86, arm} {
		for _, way := range []string{"sync", "async", "pinned"} {
			t.Run(on.name+"/"+way, func(t *testing.T) {
				p := newPodOn(t, on)
				p.arm(all(cudafault.State{Corrupt: 0.25, Seed: 11, Classes: cudafault.ClassCopy}))
				a := p.actor()
				a.want("start", "0")
				got := a.ask("copies %s 4096 %d", way, n)
				var code, copies, hit, bits int
				if _, err := fmt.Sscanf(got, "%d copies %d hit %d bits %d", &code, &copies, &hit, &bits); err != nil ||
					code != 0 || copies != n {
					t.Fatalf("copies: %s", got)
				}
				if hit < n/8 || hit > n*3/8 || bits != hit {
					t.Errorf("%d bits are wrong in %d of %d copies, want one each in about a quarter", bits, hit, n)
				}
				reported := p.process(a.pid).Trips
				lines := regexp.MustCompile(
					`(?m)^gpu-fault: run test-run: flipped bit [0-7] of byte \d+ in a device-to-host copy of 4096 bytes`,
				)
				if n := len(lines.FindAllString(a.end(), -1)); n != 10 {
					t.Errorf("%d lines on stderr, want the first 10 flips", n)
				}
				if reported != uint64(bits) {
					t.Errorf("%d flips reported, %d seen", reported, bits)
				}
			})
		}
		t.Run(on.name+"/order", func(t *testing.T) {
			p := newPodOn(t, on)
			p.arm(all(cudafault.State{Corrupt: 0.5, Seed: 5, Classes: cudafault.ClassCopy, Flags: cudafault.FlagQuiet}))
			a := p.actor()
			a.want("start", "0")
			got := a.ask("order 64")
			var code, copies, late, bits int
			if _, err := fmt.Sscanf(got, "%d copies %d late %d bits %d", &code, &copies, &late, &bits); err != nil ||
				code != 0 || late != 0 || bits < 10 {
				t.Errorf("order: %s, want some bits, and none of them later than the copy", got)
			}
		})
	}
	t.Run("the same seed", func(t *testing.T) {
		var answers []string
		for range 2 {
			p := newPod(t)
			p.arm(
				all(cudafault.State{Corrupt: 0.1, Seed: 77, Classes: cudafault.ClassCopy, Flags: cudafault.FlagQuiet}),
			)
			a := p.actor()
			a.want("start", "0")
			answers = append(answers, a.ask("copies sync 4096 100"))
		}
		if answers[0] != answers[1] {
			t.Errorf("%s, then %s", answers[0], answers[1])
		}
	})
}
