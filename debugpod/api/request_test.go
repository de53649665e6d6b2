package api

import (
	"errors"
	"strings"
	"testing"
)

func TestEncodeRefusesLarge(t *testing.T) {
	_, err := Attach(nil, Request{Protocol: Protocol, Run: strings.Repeat("x", MaxRequest)})
	var failure *Error
	if !errors.As(err, &failure) || failure.Code != CodeBadRequest {
		t.Errorf("got %v", err)
	}
}

func FuzzDecodeRequest(f *testing.F) {
	f.Add([]byte(`{"protocol":1,"inspect":{"podUIDs":["x"]}}`))
	f.Add([]byte(`{"protocol":1,"writeKmsg":{"records":[{"data":"<4>x\n","delay":1}]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		req, failure := DecodeRequest(raw)
		if failure != nil {
			return
		}
		if req.operations() != 1 {
			t.Errorf("%q is taken with none or two operations", raw)
		}
		line, err := req.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, failure := DecodeRequest(line); failure != nil {
			t.Errorf("%q is taken, %q is not: %v", raw, line, failure)
		}
	})
}
