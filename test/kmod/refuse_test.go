//go:build kmod && linux

package kmod

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/kmod"
)

const fuzzed = 10_000

// some records fit into the kernel's log many times: so many are written before they are counted.
const some = 512

// TestVMFuzz writes what nobody should: random bytes, and lines of the driver with something wrong in them. The module
// must take exactly what CheckRecord, which the client asks before anything is touched, takes, log exactly that, and
// leave the kernel unharmed (init looks for oopses at the end).
func TestVMFuzz(t *testing.T) {
	load(t, "")
	f, log := open(t), follow(t)
	random := rand.New(rand.NewPCG(rand.Uint64(), 0)) // what goes wrong is shown whole, so it can be tried again
	var seeds []string
	for _, e := range catalog(t) {
		seeds = append(seeds, e.Text())
	}
	taken, refused := 0, 0
	for range fuzzed {
		data := mutate(random, seeds[random.IntN(len(seeds))])
		record := strings.TrimSuffix(data, "\n")
		want := kmod.CheckRecord(record)
		err := write(f, data)
		switch {
		case (err == nil) != (want == nil):
			t.Fatalf("%q: the module says %v, the client %v", data, err, want)
		case err == nil:
			taken++
			if taken%some == 0 { // before the log overflows
				count(t, log, some)
			}
		case !errors.Is(err, syscall.EINVAL):
			t.Fatalf("%q: %v, wanted EINVAL", data, err)
		default:
			refused++
		}
	}
	count(t, log, taken%some)
	if taken < fuzzed/100 || refused < fuzzed/10 {
		t.Errorf("%d taken and %d refused: the test does not test both", taken, refused)
	}
}

// count fails unless so many records of the driver's came since the last time.
func count(t *testing.T, log reader, want int) {
	t.Helper()
	got := 0
	for _, record := range log.rest(t) {
		if record.priority < 8 &&
			(strings.HasPrefix(record.text, "NVRM: ") || strings.HasPrefix(record.text, "nvidia-nvswitch")) {
			got++
		}
	}
	if got != want {
		t.Fatalf("%d records were taken, and %d are in the log", want, got)
	}
}

// mutate makes something wrong, or not.
func mutate(random *rand.Rand, seed string) string {
	data := []byte(seed)
	for range random.IntN(4) {
		at := random.IntN(len(data) + 1)
		switch random.IntN(7) {
		case 0: // cut
			data = data[:at]
		case 1: // another byte
			if at < len(data) {
				data[at] = byte(random.IntN(256))
			}
		case 2: // another character that the grammar knows
			if at < len(data) {
				data[at] = "0123456789abcdefABCDEF:.,()% \n"[random.IntN(30)]
			}
		case 3: // one more
			data = append(data[:at], append([]byte{"0a:.,() \n\x00"[random.IntN(10)]}, data[at:]...)...)
		case 4: // one less
			if at < len(data) {
				data = append(data[:at], data[at+1:]...)
			}
		case 5: // too long
			data = append(data, strings.Repeat("x", random.IntN(2*kmod.MaxRecord))...)
		case 6: // noise
			data = make([]byte, random.IntN(200))
			for i := range data {
				data[i] = byte(random.IntN(256))
			}
		}
	}
	if random.IntN(2) == 0 {
		data = append(data, '\n')
	}
	return string(data)
}

// What is refused leaves nothing in the log, and no size is too large to be refused.
func TestVMRefused(t *testing.T) {
	load(t, "")
	f, log := open(t), follow(t)
	for _, size := range []int{0, kmod.MaxRecord + 1, 1 << 20} {
		if _, err := f.Write(
			[]byte("NVRM: " + strings.Repeat("x", max(0, size-6)))[:size],
		); !errors.Is(err, syscall.EINVAL) &&
			size > 0 {
			t.Errorf("%d bytes: %v, wanted EINVAL", size, err)
		}
	}
	if _, _, errno := syscall.Syscall(syscall.SYS_WRITE, f.Fd(), 8, 100); errno != syscall.EFAULT {
		t.Errorf("a bad address: %v, wanted EFAULT", errno)
	}
	if _, _, errno := syscall.Syscall(syscall.SYS_WRITE, f.Fd(), 8, ^uintptr(0)>>1); errno == 0 {
		t.Error("the largest size was taken")
	}
	if _, err := f.Read(make([]byte, 1)); err == nil {
		t.Error("the device can be read")
	}
	count(t, log, 0)
}

// TestVMUnprivileged: only who has CAP_SYS_ADMIN in the initial user namespace may write, whatever their user is
// called.
func TestVMUnprivileged(t *testing.T) {
	load(t, "")
	if info, err := os.Stat(device); err != nil || info.Mode().Perm() != 0o200 {
		t.Errorf("%v, %v: wanted a device that only root writes", info, err)
	}
	log := follow(t)
	open := func(attributes *syscall.SysProcAttr, path string) string {
		cmd := exec.Command("/bin/busybox", "sh", "-c", "echo 'NVRM: forbidden' >"+path)
		cmd.SysProcAttr = attributes
		said, err := cmd.CombinedOutput()
		if err == nil {
			return "taken"
		}
		return string(said)
	}
	if said := open(
		&syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}, device,
	); !strings.Contains(
		said, "Permission denied",
	) {
		t.Errorf("a user: %s", said)
	}
	inside := &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
	}
	if said := open(inside, device); !strings.Contains(said, "Operation not permitted") {
		t.Errorf("root of another user namespace: %s", said)
	}
	// Who opened it may hand it on, to somebody who may not write.
	f, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	cmd := exec.Command("/bin/busybox", "sh", "-c", "echo 'NVRM: forbidden' >&3")
	cmd.ExtraFiles = []*os.File{f}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	if said, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("a user with root's open device: taken %s", said)
	}
	count(t, log, 0)
}

// TestVMRate: who writes without end is told to wait, and what is taken is in the log: nothing is dropped in silence.
func TestVMRate(t *testing.T) {
	load(t, "")
	f, log := open(t), follow(t)
	const most = 1000 // MAX_RATE
	taken, tooFast := 0, 0
	for begun := time.Now(); tooFast == 0; {
		_, err := f.WriteString("NVRM: rate\n")
		switch {
		case err == nil:
			taken++
		case errors.Is(err, syscall.EAGAIN):
			tooFast++
		default:
			t.Fatal(err)
		}
		if allowed := (int(time.Since(begun)/time.Second) + 2) * most; taken > allowed {
			t.Fatalf("%d records were taken within %v", taken, time.Since(begun))
		}
		if taken%some == 0 && taken > 0 && err == nil {
			count(t, log, some)
		}
		if time.Since(begun) > 30*time.Second {
			t.Fatalf("%d records in 30 s: nothing stopped us, or this machine is too slow to be stopped", taken)
		}
	}
	count(t, log, taken%some)
	if err := write(f, "NVRM: and on\n"); err != nil {
		t.Errorf("after a pause: %v", err)
	}
	fmt.Printf("\nrate: stopped after %d records\n", taken)
}
