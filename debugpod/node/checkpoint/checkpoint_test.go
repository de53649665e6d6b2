package checkpoint

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const text = `{"Data":{
 "PodDeviceEntries":[
  {"PodUID":"u","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["GPU-a"]}},
  {"PodUID":"v","ResourceName":"amd.com/gpu","DeviceIDs":["0"]}],
 "RegisteredDevices":{"nvidia.com/gpu":["GPU-b","GPU-a"]}}}`

func TestParse(t *testing.T) {
	t.Parallel()
	got, err := Parse([]byte(text))
	want := Checkpoint{
		Healthy: map[string][]string{"nvidia.com/gpu": {"GPU-a", "GPU-b"}},
		Entries: []Entry{{"u", "nvidia.com/gpu", []string{"GPU-a"}}, {"v", "amd.com/gpu", []string{"0"}}},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	if _, err := Parse([]byte(strings.Replace(text, `["0"]`, "7", 1))); err == nil {
		t.Error("a number was taken for device IDs")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(text))
	f.Fuzz(func(_ *testing.T, raw []byte) { _, _ = Parse(raw) })
}
