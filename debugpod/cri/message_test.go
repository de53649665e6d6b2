package cri

import (
	"encoding/json"
	"testing"
)

// Whatever a runtime answers: no panic, and what is taken can be sent on as JSON.
func FuzzDecode(f *testing.F) {
	f.Add([]byte("\x12\x0acontainerd\x1a\x06v2.3.7"),
		[]byte("\x0a\x12\x0a\x10\x0a\x0cRuntimeReady\x10\x01\x12\x0c\x0a\x06config\x12\x02{}\x1a\x06\x0a\x04runc"))
	f.Add([]byte{0xff}, []byte{0x0a, 0xff})
	f.Fuzz(func(t *testing.T, version, status []byte) {
		info := &Info{}
		var err error
		if info.Name, info.Version, err = decodeVersion(version); err == nil && info.Name == "" {
			t.Error("a runtime without a name was taken")
		}
		if err := decodeStatus(status, info); err != nil {
			return
		}
		if _, err := json.Marshal(info); err != nil {
			t.Errorf("%+v cannot be sent on: %v", info, err)
		}
	})
}
