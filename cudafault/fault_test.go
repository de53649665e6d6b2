package cudafault

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

func pointer[T any](v T) *T { return &v }

// A line for each profile, and for what else can be asked for.
func TestSummary(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	add := func(f Fault) {
		if err := f.Validate(); err != nil {
			fmt.Fprintf(&out, "refused: %v\n", err)
			return
		}
		fmt.Fprintln(&out, f.Summary())
	}
	for _, p := range Profiles() {
		add(Fault{XID: p.XID, DriverMismatch: p.Name == driverMismatch, FabricNotReady: p.Name == fabricNotReady})
	}
	out.WriteString("\n")
	for _, f := range []Fault{
		{XID: 79, Hang: true},
		{XID: 79, PhaseNew: pointer(0), NVML: pointer(0)},
		{XID: 48, PhaseNew: pointer(214), NVML: pointer(18)},
		{XID: 119, Latency: 6 * time.Second, Jitter: time.Second},
		{
			XID: 94, Trigger: Trigger{AfterCalls: 1000, After: 90 * time.Second},
			Scope: Scope{Devices: []int{0, 1}, Rank: pointer(0), Process: "train*.py", Nodes: []string{"gpu-1"}},
		},
		{XID: 79, Layer: LayerRuntime},
		{Error: 719},
		{Error: 719, Sticky: pointer(false), Trigger: Trigger{Every: 10, Max: 3}},
		{Error: 2, Trigger: Trigger{Function: "cuMemCreate", Probability: 0.01, Seed: 7}},
		{Error: 802},
		{Error: 46, Trigger: Trigger{Function: "cuInit"}},
		{Error: 719, DriverMismatch: true},
		{Hang: true, Trigger: Trigger{WindowFrom: 10 * time.Second, WindowTo: 2 * time.Minute}},
		{Latency: 5 * time.Millisecond, Jitter: 2 * time.Millisecond, Trigger: Trigger{WindowFrom: time.Hour}},
		{NVML: pointer(15)},
		{MemLimit: 8 << 30, HideDevices: []int{1}, CorruptD2H: 0.001, Quiet: true},
		{HideDevices: AllDevices()},
	} {
		add(f)
	}
	golden.Compare(t, "summary.golden", out.String())
}

// The state carries what the profile and the flags say, and no more.
func TestFaultState(t *testing.T) {
	t.Parallel()
	lost := ClassAlloc | ClassCopy | ClassSet | ClassLaunch | ClassSync | ClassQuery
	for name, test := range map[string]struct {
		fault Fault
		want  State
	}{
		"79": {Fault{XID: 79}, State{Error: 999, ErrorInit: 100, NVMLError: 15, Classes: lost, Flags: FlagSticky}},
		"94": {Fault{XID: 94}, State{
			Error: 226, ErrorFallback: 214, ErrorMinDriver: 12080, Surface: SurfaceSync,
			Classes: ClassCopy | ClassSet | ClassLaunch, Flags: FlagSticky, NVMLXID: 94, NVMLECC: 1,
		}},
		"63": {Fault{XID: 63}, State{NVMLXID: 63, NVMLRows: RowRemapped | RowPending}},
		"48, and NVML notices nothing": {Fault{XID: 48, NVML: pointer(0)}, State{
			Error: 214, Surface: SurfaceSync, Classes: ClassCopy | ClassSet | ClassLaunch, Flags: FlagSticky,
		}},
		"79 without new": {
			Fault{XID: 79, PhaseNew: pointer(0), NVML: pointer(0)},
			State{Error: 999, Classes: lost, Flags: FlagSticky},
		},
		"79 by hanging": {
			Fault{XID: 79, Hang: true},
			State{ErrorInit: 100, NVMLError: 15, Classes: ClassCopy | ClassSync, HangClasses: ClassCopy | ClassSync},
		},
		"79 in the runtime": {
			Fault{XID: 79, Layer: LayerRuntime},
			State{Error: 999, ErrorInit: 100, Classes: lost, Flags: FlagSticky | FlagRuntime},
		},
		"109": {
			Fault{XID: 109, Latency: time.Second},
			State{
				Error: 719, Classes: ClassSync, Flags: FlagSticky, Latency: time.Second, LatencyClasses: ClassSync,
				NVMLXID: 109,
			},
		},
		"149": {
			Fault{XID: 149},
			State{
				Error: 220, Surface: SurfaceSync, Classes: ClassLaunch | ClassPeer, HangClasses: ClassPeer | ClassIPC,
				Flags: FlagSticky, NVMLXID: 149,
			},
		},
		"XID, in a function": {
			Fault{XID: 31, Trigger: Trigger{Function: "cuGraphLaunch"}},
			State{
				Error: 700, Surface: SurfaceSync, Classes: ClassCopy | ClassSet | ClassLaunch,
				Function: "cuGraphLaunch", Flags: FlagSticky, NVMLXID: 31,
			},
		},
		"error in a function fails itself": {
			Fault{Error: 700, Trigger: Trigger{Function: "cuGraphLaunch"}},
			State{Error: 700, Classes: ClassLaunch, Function: "cuGraphLaunch", Flags: FlagSticky},
		},
		"out of memory": {Fault{Error: 2}, State{Error: 2, Classes: ClassAlloc}},
		"peer access": {
			Fault{Error: 217, Sticky: pointer(true), Quiet: true},
			State{Error: 217, Classes: ClassPeer, Flags: FlagSticky | FlagQuiet},
		},
		"no device": {Fault{Error: 100}, State{Error: 100, Classes: ClassInit}},
		"no device, runtime": {
			Fault{Error: 100, Layer: LayerRuntime},
			State{Error: 100, Classes: ClassInit | ClassDevice, Flags: FlagRuntime},
		},
		"driver mismatch": {Fault{DriverMismatch: true}, State{ErrorInit: 803, NVMLInitError: 18}},
		"fabric": {
			Fault{FabricNotReady: true, MemLimit: 1 << 30}, State{ErrorInit: 802, MemLimit: 1 << 30},
		},
		"NVML does not start": {Fault{NVML: pointer(9)}, State{NVMLInitError: 9}},
		"all hidden":          {Fault{HideDevices: AllDevices()}, State{Hide: AllDevices(), ErrorInit: 100}},
		"latency": {
			Fault{Latency: time.Millisecond, Jitter: time.Microsecond},
			State{
				Latency: time.Millisecond, Jitter: time.Microsecond, Classes: latencyDefault,
				LatencyClasses: latencyDefault,
			},
		},
		"latency in a function": {
			Fault{Latency: time.Millisecond, Trigger: Trigger{Function: "cuMemcpyPeer*"}},
			State{
				Latency: time.Millisecond, Classes: latencyDefault, LatencyClasses: ClassCopy | ClassPeer,
				Function: "cuMemcpyPeer*",
			},
		},
		"slow before it fails": {
			Fault{Error: 2, Latency: time.Second},
			State{Error: 2, Latency: time.Second, Classes: ClassAlloc, LatencyClasses: ClassAlloc},
		},
		"hang in a function": {
			Fault{Hang: true, Trigger: Trigger{Function: "cuCtxSynchronize*"}},
			State{Classes: hangDefault, HangClasses: ClassSync, Function: "cuCtxSynchronize*"},
		},
		"corruption": {
			Fault{CorruptD2H: 0.5, Trigger: Trigger{Seed: 3}}, State{Corrupt: 0.5, Classes: ClassCopy, Seed: 3},
		},
		"trigger and scope": {
			Fault{Error: 2, Trigger: Trigger{
				AfterCalls: 1, After: time.Second, Every: 2, Probability: 0.5, Seed: 3, WindowFrom: time.Second,
				WindowTo: time.Hour, Max: 4,
			},
				Scope: Scope{Devices: []int{1}, Rank: pointer(0), Process: "p*", Nodes: []string{"n"}}},
			State{Error: 2, Classes: ClassAlloc, AfterCalls: 1, After: time.Second, Every: 2, Probability: 0.5, Seed: 3,
				WindowFrom: time.Second, WindowTo: time.Hour, Max: 4,
				Devices: []int{1}, Process: "p*", Nodes: []string{"n"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			armed, expires := time.Unix(1_800_000_000, 123_456_789), time.Unix(1_800_000_600, 0)
			got, err := test.fault.State("run-1", 5, armed, expires)
			if err != nil {
				t.Fatal(err)
			}
			want := test.want
			want.Run, want.Generation, want.ArmedAt, want.Expires = "run-1", 5, time.UnixMilli(1_800_000_000_123),
				expires
			if test.fault.Rank == nil {
				want.Rank = AllRanks
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestFaultStateDisarmed(t *testing.T) {
	t.Parallel()
	s, err := Fault{XID: 79}.State("run-1", 1, time.Time{}, time.Time{})
	if err != nil || !s.ArmedAt.IsZero() || !s.Expires.IsZero() {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := (Fault{XID: 79}).State(strings.Repeat("r", 40), 1, time.Time{}, time.Time{}); err == nil {
		t.Error("a run's ID that does not fit was taken")
	}
	if _, err := (Fault{}).State("run-1", 1, time.Time{}, time.Time{}); err == nil {
		t.Error("a fault that asks for nothing was taken")
	}
}

// A record keeps the fault as JSON; it must mean the same when it is read again.
func TestFaultAsJSON(t *testing.T) {
	t.Parallel()
	want := Fault{
		XID: 94, PhaseNew: pointer(0), Sticky: pointer(false), Latency: time.Millisecond, HideDevices: []int{3},
		MemLimit: 1 << 62,
		Trigger:  Trigger{Every: 2, Probability: 0.1, WindowTo: time.Minute},
		Scope:    Scope{Rank: pointer(0), Devices: []int{0}}, Layer: LayerDriver, Quiet: true,
	}
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Fault
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", data, diff)
	}
	if data, _ := json.Marshal(Fault{XID: 79}); string(data) != `{"xid":79}` {
		t.Errorf("a plain fault is %s", data)
	}
}
