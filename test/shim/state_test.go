//go:build shim

package shim

import (
	"encoding/binary"
	"hash/fnv"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
)

// TestArming holds that a running process sees the fault within a second and a half of its file's arrival, and is
// healthy as soon after disarming.
func TestArming(t *testing.T) {
	for _, on := range []platform{x86, arm} {
		t.Run(on.name, func(t *testing.T) {
			p := newPodOn(t, on)
			a := p.actor()
			a.want("start", "0")
			a.want("launch 1000", "0*1000")
			for range 2 {
				p.arm(sticky999())
				if took := a.until("launch", 999); took > 1500*time.Millisecond {
					t.Errorf("armed: it took %v", took)
				}
				a.want("sync", "999*1")
				p.disarm()
				if took := a.until("sync", 0); took > 1500*time.Millisecond {
					t.Errorf("disarmed: it took %v", took)
				}
				a.want("launch 1000", "0*1000")
			}
		})
	}
}

// TestInitialisationLooks holds that a program that initialises sees what is true now, and not what was true at its
// last look, up to a quarter of a second ago.
func TestInitialisationLooks(t *testing.T) {
	for _, on := range []platform{x86, arm} {
		t.Run(on.name, func(t *testing.T) {
			p := newPodOn(t, on)
			for range 3 {
				a := p.actor()
				if got := a.ask("nvml"); !strings.HasPrefix(got, "init 0 ") { // it has looked
					t.Errorf("before: %s", got)
				}
				p.arm(all(cudafault.State{ErrorInit: 802, NVMLInitError: 9, Flags: cudafault.FlagQuiet}))
				if got := a.ask("nvml"); !strings.HasPrefix(got, "init 9 ") {
					t.Errorf("NVML: %s, want init 9", got)
				}
				p.disarm()
				if got := a.ask("nvml"); !strings.HasPrefix(got, "init 0 ") {
					t.Errorf("NVML after disarming: %s", got)
				}
				p.arm(all(cudafault.State{ErrorInit: 802, Flags: cudafault.FlagQuiet}))
				a.want("start", "802")
				p.disarm()
				a.want("start", "0")
				a.end()
			}
		})
	}
}

// TestArmingInAStorm arms and disarms while 32 threads call: nobody crashes, no other code comes, and in the end all is
// well.
func TestArmingInAStorm(t *testing.T) {
	p := newPod(t)
	a := p.actor()
	a.want("start", "0")
	stormy := map[string]bool{}
	for round := range 3 {
		for _, armed := range []bool{true, false} {
			if armed {
				p.arm(sticky999())
			} else {
				p.disarm()
			}
			want := generations.Load()
			eventually(t, "the state is read", 20*time.Second, func() bool {
				for run := range strings.FieldsSeq(a.ask("storm 32 2000")) {
					code, _, _ := strings.Cut(run, "*")
					stormy[code] = true
				}
				return p.process(a.pid).Generation == want
			})
			code := "0"
			if armed {
				code = "999"
			}
			if got := a.ask("storm 32 200"); got != code+"*6400" {
				t.Errorf("round %d, armed %v: %s", round, armed, got)
			}
		}
	}
	if len(stormy) != 2 || !stormy["0"] || !stormy["999"] {
		t.Errorf("codes %v, want 0 and 999", stormy)
	}
}

// TestExpiry holds the dead man: nobody disarms, and the process and new ones are healthy for good, whatever the
// context suffered.
func TestExpiry(t *testing.T) {
	p := newPod(t)
	s := sticky999()
	s.Expires = time.Now().Add(2 * time.Second)
	s.ErrorInit = 100
	p.arm(s)
	a := p.actor()
	a.want("start", "100")
	b := p.actor()
	b.want("init", "100*1")
	b.until("init", 0)
	if time.Now().Before(s.Expires) {
		t.Error("it passed before its time")
	}
	b.want("start", "0")
	b.want("launch 100", "0*100")
	eventually(t, "the process reports that it expired", 3*time.Second, func() bool {
		b.ask("launch")
		return p.process(b.pid).Status == cudafault.StatusExpired
	})
	c := p.actor()
	c.want("start", "0")
	c.want("launch 100", "0*100")
}

// TestExpiryOfPoison heals a process that runs with a poisoned context.
func TestExpiryOfPoison(t *testing.T) {
	p := newPod(t)
	a := p.actor()
	a.want("start", "0")
	s := sticky999()
	s.Expires = time.Now().Add(3 * time.Second)
	p.arm(s)
	a.until("launch", 999)
	a.want("sync", "999*1")
	a.until("sync", 0)
	if early := time.Until(s.Expires); early > 0 {
		t.Errorf("it was healthy %v before its time", early)
	}
	a.want("launch 10", "0*10")
}

// TestArmedAnewForgets holds that a process does not report the trips of a former fault as those of the one that holds
// now.
func TestArmedAnewForgets(t *testing.T) {
	p := newPod(t)
	a := p.actor()
	a.want("start", "0")
	p.arm(sticky999())
	a.until("launch", 999)
	if got := p.process(a.pid); got.Trips != 1 {
		t.Fatalf("the first fault is not told: %+v", got)
	}
	quiet := sticky999()
	quiet.AfterCalls = 1 << 40
	want := p.arm(quiet).Generation
	eventually(t, "the new state is read", 5*time.Second, func() bool {
		a.ask("launch")
		return p.process(a.pid).Generation == want
	})
	if got := p.process(a.pid); got.Trips != 0 || got.LastError != 0 || got.Function != "" || !got.TrippedAt.IsZero() {
		t.Errorf("trips of the former fault are told as the new one's: %+v", got)
	}
}

// TestGoneState holds that a fault ends with its ConfigMap: when the file is gone, a process is healthy within two
// looks; and the same fault begins again when the file comes back.
func TestGoneState(t *testing.T) {
	for _, on := range []platform{x86, arm} {
		t.Run(on.name, func(t *testing.T) {
			p := newPodOn(t, on)
			a := p.actor()
			a.want("start", "0")
			p.arm(sticky999())
			a.until("launch", 999)
			data, err := os.ReadFile(p.state)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(p.state); err != nil {
				t.Fatal(err)
			}
			if took := a.until("sync", 0); took > 2500*time.Millisecond {
				t.Errorf("the file is gone: it took %v", took)
			}
			a.want("launch 1000", "0*1000")
			p.write(data)
			a.until("launch", 999)
		})
	}
}

// TestBadStates holds that a file that is not a good state changes nothing: what held, holds; where nothing did, calls
// pass.
func TestBadStates(t *testing.T) {
	seal := func(data []byte) []byte {
		clear(data[16:24])
		sum := fnv.New64a()
		sum.Write(data)
		binary.LittleEndian.PutUint64(data[16:], sum.Sum64())
		return data
	}
	s := sticky999()
	s.Generation, s.ArmedAt, s.Run = 1<<40, time.Now(), "bad"
	good, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(seal(slices.Clone(good)), good) {
		t.Fatal("the test's checksum is not the contract's")
	}
	edit := func(sealed bool, change func(data []byte)) []byte {
		data := slices.Clone(good)
		change(data)
		if sealed {
			seal(data)
		}
		return data
	}
	for _, test := range []struct {
		name string
		data []byte
	}{
		{"empty", nil},
		{"short", good[:1023]},
		{"half", good[:512]},
		{"long", append(slices.Clone(good), 0)},
		{"garbage", []byte(strings.Repeat("garbage!", 128))},
		{"zeros", make([]byte, 1024)},
		{"torn: the second half of another", edit(false, func(data []byte) { copy(data[700:], make([]byte, 100)) })},
		{"one bit", edit(false, func(data []byte) { data[500] ^= 4 })},
		{"checksum", edit(false, func(data []byte) { data[17]++ })},
		{"magic", edit(true, func(data []byte) { data[0] = 'g' })},
		{"newer version", edit(true, func(data []byte) { data[8] = 2 })},
		{"other size", edit(true, func(data []byte) { data[12]++ })},
		{"bytes set that must be zero", edit(true, func(data []byte) { data[1000] = 1 })},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPod(t)
			p.write(test.data)
			a := p.actor()
			a.want("start", "0")
			a.want("launch 100", "0*100")
			p.arm(sticky999())
			a.until("launch", 999)
			p.write(test.data)
			// It has looked at the bad file when a second has passed since a look after it was written.
			from := time.Now()
			eventually(t, "the next look", 5*time.Second, func() bool {
				a.want("launch", "999*1")
				return p.process(a.pid).Looked.After(from)
			})
			a.want("launch 10", "999*10")
			if err := os.Remove(p.state); err != nil {
				t.Fatal(err)
			}
			from = time.Now()
			eventually(t, "the look at no file", 5*time.Second, func() bool {
				a.want("launch", "999*1")
				return p.process(a.pid).Looked.After(from)
			})
			p.disarm()
			a.until("launch", 0)
		})
	}
}
