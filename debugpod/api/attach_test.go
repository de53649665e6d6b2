package api

import (
	"bytes"
	"testing"
)

func FuzzDetach(f *testing.F) {
	whole, err := Attach([]byte("\x7fELF and so on"), Request{Protocol: Protocol, Inspect: &Inspect{}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add([]byte(magic))
	f.Fuzz(func(_ *testing.T, exe []byte) {
		_, _ = Detach(bytes.NewReader(exe), int64(len(exe)))
	})
}
