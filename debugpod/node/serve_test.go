package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
)

func only(t *testing.T, out *bytes.Buffer) Answer {
	t.Helper()
	var a Answer
	dec := json.NewDecoder(out)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&a); err != nil {
		t.Fatal(err)
	}
	if err := dec.Decode(new(Answer)); !errors.Is(err, io.EOF) {
		t.Errorf("there is more than one answer: %v", err)
	}
	return a
}

func TestServeRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		request string
		want    Code
	}{
		"nothing":          {"", CodeTruncated},
		"a blank line":     {"  \n", CodeTruncated},
		"no JSON":          {"hello\n", CodeBadRequest},
		"cut":              {`{"protocol":1,"insp`, CodeBadRequest},
		"an array":         {"[]\n", CodeBadRequest},
		"no protocol":      {`{"inspect":{}}` + "\n", CodeProtocol},
		"another protocol": {`{"protocol":2,"inspect":{},"new":1}` + "\n", CodeProtocol},
		"no operation":     {`{"protocol":1,"run":"x"}` + "\n", CodeBadRequest},
		"two operations": {
			`{"protocol":1,"inspect":{},"writeKmsg":{"records":[{"data":"<4>x\n"}]}}` + "\n", CodeBadRequest,
		},
		"unknown field":        {`{"protocol":1,"inspect":{},"force":true}` + "\n", CodeBadRequest},
		"unknown nested field": {`{"protocol":1,"inspect":{"deep":true}}` + "\n", CodeBadRequest},
		"something behind it":  {`{"protocol":1,"inspect":{}}{}` + "\n", CodeBadRequest},
		"change of nothing":    {`{"protocol":1,"run":"x","change":{"files":[]}}` + "\n", CodeBadRequest},
		"change above the root": {
			`{"protocol":1,"run":"x","change":{"files":[{"path":"/etc/../x","before":"","after":"","edits":null}]}}` +
				"\n",
			CodeBadRequest,
		},
		"await of no run":   {`{"protocol":1,"run":"../x","await":{}}` + "\n", CodeBadRequest},
		"restore of no run": {`{"protocol":1,"restore":{}}` + "\n", CodeBadRequest},
		"restore of a path": {
			`{"protocol":1,"run":"x","restore":{"files":[{"path":"/etc/shadow"}]}}` + "\n", CodeBadRequest,
		},
		"firewall by table": {
			`{"protocol":1,"run":"x","removeFirewall":{"firewall":{"table":"filter"}}}` + "\n", CodeBadRequest,
		},
		"change and restore":    {`{"protocol":1,"run":"x","await":{},"restore":{}}` + "\n", CodeBadRequest},
		"no records":            {`{"protocol":1,"writeKmsg":{}}` + "\n", CodeBadRequest},
		"a record not ended":    {`{"protocol":1,"writeKmsg":{"records":[{"data":"<4>x"}]}}` + "\n", CodeBadRequest},
		"larger than allowed":   {strings.Repeat(" ", MaxRequest) + "{}\n", CodeBadRequest},
		"larger, without a end": {strings.Repeat("x", MaxRequest+1), CodeBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := Serve(t.Context(), strings.NewReader(tc.request), &out, Host{Root: t.TempDir(), Proc: t.TempDir()})
			var failure *Error
			if !errors.As(err, &failure) || failure.Code != tc.want {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if a := only(t, &out); a.Error == nil || *a.Error != *failure || a.Done || a.Protocol != Protocol {
				t.Errorf("answered %+v, returned %v", a, err)
			}
		})
	}
}

func TestServeInspect(t *testing.T) {
	var out bytes.Buffer
	host := Host{
		Root: tree(t, map[string]string{"etc/hostname": "gpu-1\n"}),
		Proc: tree(t, map[string]string{"sys/kernel/osrelease": "6.1.0\n"}),
	}
	// The client is gone before the request is done: inspecting goes on, it changes nothing.
	if err := Serve(t.Context(), strings.NewReader(`{"protocol":1,"inspect":{}}`), &out, host); err != nil {
		t.Fatal(err)
	}
	a := only(t, &out)
	if !a.Done || a.Info == nil || a.Info.KernelRelease != "6.1.0" {
		t.Errorf("got %+v", a)
	}
}

// TestServeSaysWhenItCrashes: the panic is the writer's own, as no request is known that makes one.
func TestServeSaysWhenItCrashes(t *testing.T) {
	var out bytes.Buffer
	err := serve(t.Context(), func() ([]byte, *Error) { panic("bug") }, strings.NewReader(""), &out, Host{})
	var failure *Error
	if !errors.As(err, &failure) || failure.Code != CodeInternal {
		t.Errorf("got %v", err)
	}
	if a := only(t, &out); a.Error == nil || a.Error.Code != CodeInternal || !strings.Contains(a.Error.Message, "bug") {
		t.Errorf("answered %+v", a)
	}
}

// TestServeEntersTheNode: what changes files goes on in the node's own namespaces, with the very same request, and
// nothing is done here.
func TestServeEntersTheNode(t *testing.T) {
	for name, request := range map[string]string{
		"await":     `{"protocol":1,"run":"x","await":{}}`,
		"restore":   `{"protocol":1,"run":"x","restore":{}}`,
		"leftovers": `{"protocol":1,"run":"","leftovers":{}}`,
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			var got string
			host := Host{Root: t.TempDir(), Proc: t.TempDir(), Enter: func(request []byte) error {
				got = strings.TrimSpace(string(request))
				return errors.New("not permitted")
			}}
			err := Serve(t.Context(), strings.NewReader(request+"\n"), &out, host)
			var failure *Error
			if !errors.As(err, &failure) || failure.Code != CodeEnter || got != request {
				t.Errorf("%v; entered with %q", err, got)
			}
			only(t, &out)
		})
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestServeReportsLostOutput(t *testing.T) {
	err := Serve(t.Context(), strings.NewReader(`{"protocol":1,"inspect":{}}`), brokenPipe{},
		Host{Root: t.TempDir(), Proc: t.TempDir()})
	if !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
}

func FuzzDecodeRequest(f *testing.F) {
	f.Add([]byte(`{"protocol":1,"inspect":{"podUIDs":["x"]}}`))
	f.Add([]byte(`{"protocol":1,"writeKmsg":{"records":[{"data":"<4>x\n","delay":1}]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		req, failure := decodeRequest(raw)
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
		if _, failure := decodeRequest(line); failure != nil {
			t.Errorf("%q is taken, %q is not: %v", raw, line, failure)
		}
	})
}
