package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/nodetest"
)

// TestServeDiagnose holds that the answer is one line that the client takes.
func TestServeDiagnose(t *testing.T) {
	t.Parallel()
	n := nodetest.GPU(t)
	in, client := io.Pipe()
	defer func() { _ = client.Close() }()
	go func() { _, _ = io.WriteString(client, `{"protocol":1,"diagnose":{}}`+"\n") }()
	var out bytes.Buffer
	host := n.Host
	host.Kmsg = n.Host.Root + "/no-kmsg"
	if err := Serve(t.Context(), in, &out, host); err != nil {
		t.Fatal(err)
	}
	if a := only(t, &out); !a.Done || a.Diagnosis == nil || a.Diagnosis.Probe.OS["ID"] != "ubuntu" {
		t.Errorf("got %+v", a)
	}
}

func only(t *testing.T, out *bytes.Buffer) api.Answer {
	t.Helper()
	var a api.Answer
	dec := json.NewDecoder(out)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&a); err != nil {
		t.Fatal(err)
	}
	if err := dec.Decode(new(api.Answer)); !errors.Is(err, io.EOF) {
		t.Errorf("there is more than one answer: %v", err)
	}
	return a
}

func TestServeRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		request string
		want    api.Code
	}{
		"nothing":          {"", api.CodeTruncated},
		"a blank line":     {"  \n", api.CodeTruncated},
		"no JSON":          {"hello\n", api.CodeBadRequest},
		"cut":              {`{"protocol":1,"insp`, api.CodeBadRequest},
		"an array":         {"[]\n", api.CodeBadRequest},
		"no protocol":      {`{"inspect":{}}` + "\n", api.CodeProtocol},
		"another protocol": {`{"protocol":2,"inspect":{},"new":1}` + "\n", api.CodeProtocol},
		"no operation":     {`{"protocol":1,"run":"x"}` + "\n", api.CodeBadRequest},
		"two operations": {
			`{"protocol":1,"inspect":{},"writeKmsg":{"records":[{"data":"<4>x\n"}]}}` + "\n", api.CodeBadRequest,
		},
		"unknown field":        {`{"protocol":1,"inspect":{},"force":true}` + "\n", api.CodeBadRequest},
		"unknown nested field": {`{"protocol":1,"inspect":{"deep":true}}` + "\n", api.CodeBadRequest},
		"something behind it":  {`{"protocol":1,"inspect":{}}{}` + "\n", api.CodeBadRequest},
		"change of nothing":    {`{"protocol":1,"run":"x","change":{"files":[]}}` + "\n", api.CodeBadRequest},
		"change above the root": {
			`{"protocol":1,"run":"x","change":{"files":[{"path":"/etc/../x","before":"","after":"","edits":null}]}}` +
				"\n",
			api.CodeBadRequest,
		},
		"await of no run":   {`{"protocol":1,"run":"../x","await":{}}` + "\n", api.CodeBadRequest},
		"restore of no run": {`{"protocol":1,"restore":{}}` + "\n", api.CodeBadRequest},
		"restore of a path": {
			`{"protocol":1,"run":"x","restore":{"files":[{"path":"/etc/shadow"}]}}` + "\n", api.CodeBadRequest,
		},
		"firewall by table": {
			`{"protocol":1,"run":"x","removeFirewall":{"firewall":{"table":"filter"}}}` + "\n", api.CodeBadRequest,
		},
		"change and restore": {`{"protocol":1,"run":"x","await":{},"restore":{}}` + "\n", api.CodeBadRequest},
		"no records":         {`{"protocol":1,"writeKmsg":{}}` + "\n", api.CodeBadRequest},
		"a record not ended": {
			`{"protocol":1,"writeKmsg":{"records":[{"data":"<4>x"}]}}` + "\n", api.CodeBadRequest,
		},
		"larger than allowed":   {strings.Repeat(" ", api.MaxRequest) + "{}\n", api.CodeBadRequest},
		"larger, without a end": {strings.Repeat("x", api.MaxRequest+1), api.CodeBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := Serve(t.Context(), strings.NewReader(tc.request), &out,
				hostfs.Host{Root: t.TempDir(), Proc: t.TempDir()})
			var failure *api.Error
			if !errors.As(err, &failure) || failure.Code != tc.want {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if a := only(t, &out); a.Error == nil || *a.Error != *failure || a.Done || a.Protocol != api.Protocol {
				t.Errorf("answered %+v, returned %v", a, err)
			}
		})
	}
}

func TestServeInspect(t *testing.T) {
	var out bytes.Buffer
	host := hostfs.Host{
		Root: nodetest.Tree(t, map[string]string{"etc/hostname": "gpu-1\n"}),
		Proc: nodetest.Tree(t, map[string]string{"sys/kernel/osrelease": "6.1.0\n"}),
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
	err := serve(t.Context(), func() ([]byte, *api.Error) { panic("bug") }, strings.NewReader(""), &out, hostfs.Host{})
	var failure *api.Error
	if !errors.As(err, &failure) || failure.Code != api.CodeInternal {
		t.Errorf("got %v", err)
	}
	if a := only(t, &out); a.Error == nil || a.Error.Code != api.CodeInternal ||
		!strings.Contains(a.Error.Message, "bug") {
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
			host := hostfs.Host{Root: t.TempDir(), Proc: t.TempDir(), Enter: func(request []byte) error {
				got = strings.TrimSpace(string(request))
				return errors.New("not permitted")
			}}
			err := Serve(t.Context(), strings.NewReader(request+"\n"), &out, host)
			var failure *api.Error
			if !errors.As(err, &failure) || failure.Code != api.CodeEnter || got != request {
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
		hostfs.Host{Root: t.TempDir(), Proc: t.TempDir()})
	if !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
}
