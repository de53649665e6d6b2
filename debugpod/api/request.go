package api

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
)

// MaxRequest is the maximum size of a request in bytes. It allows for MaxKmsgRecords records of maximum length.
const MaxRequest = 16 << 20

// Encode returns the request as one line for the helper.
func (r Request) Encode() ([]byte, error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if len(raw) >= MaxRequest {
		return nil, Errorf(CodeBadRequest, "the request is larger than %d bytes: split it", MaxRequest)
	}
	return append(raw, '\n'), nil
}

// DecodeRequest decodes a request. It rejects anything that Request does not define.
func DecodeRequest(raw []byte) (Request, *Error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return Request{}, Errorf(CodeTruncated, "no request was received")
	}
	// Check the version first, because another version may have unknown fields.
	var version struct {
		Protocol int `json:"protocol"`
	}
	if err := json.Unmarshal(raw, &version); err != nil {
		return Request{}, Errorf(CodeBadRequest, "the request is not a single JSON object: %v", err)
	}
	if version.Protocol != Protocol {
		return Request{}, Errorf(CodeProtocol,
			"the client uses protocol version %d, but the helper uses version %d: use the helper from the same release as the client", version.Protocol,
			Protocol)
	}
	var req Request
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&req); err != nil {
		return Request{}, Errorf(CodeBadRequest, "decode the request: %v", err)
	}
	if n := req.operations(); n != 1 {
		return Request{}, Errorf(CodeBadRequest, "the request has %s, but must have exactly one",
			count.Of(n, "operation"))
	}
	if err := req.validate(); err != nil {
		return Request{}, Errorf(CodeBadRequest, "%v", err)
	}
	return req, nil
}

func (r Request) operations() int {
	n := 0
	for _, asked := range []bool{
		r.Inspect != nil, r.WriteKmsg != nil, r.InspectRuntime != nil, r.Change != nil, r.Await != nil,
		r.Restore != nil, r.Leftovers != nil,
		r.Diagnose != nil, r.BuildModule != nil, r.WriteModule != nil, r.RemoveModule != nil, r.Firewall != nil,
		r.RemoveFirewall != nil, r.ListDevices != nil, r.FailDevices != nil, r.RecoverDevices != nil, r.ResetGPU != nil,
		r.ReadKernelLog != nil, r.RemoveFiles != nil,
	} {
		if asked {
			n++
		}
	}
	return n
}

// ChangesFiles reports whether the request is about a dead man's switch for files.
func (r Request) ChangesFiles() bool {
	return r.Change != nil || r.Await != nil || r.Restore != nil || r.Leftovers != nil
}

// ChangesDevices reports whether the request is about the kubelet's devices.
func (r Request) ChangesDevices() bool {
	return r.ListDevices != nil || r.FailDevices != nil || r.RecoverDevices != nil
}

// EntersNode reports whether the request runs in the host namespaces.
func (r Request) EntersNode() bool { return r.ChangesFiles() || r.ChangesDevices() }

func (r Request) validate() error {
	if r.Change != nil || r.Await != nil || r.Restore != nil || r.WriteModule != nil || r.RemoveModule != nil ||
		r.Firewall != nil || r.RemoveFirewall != nil || r.FailDevices != nil || r.RecoverDevices != nil {
		if err := deadman.ValidRun(r.Run); err != nil {
			return err
		}
	}
	if r.Key != nil && (len(r.Key) != deadman.KeySize || r.Change == nil && r.Await == nil && r.Restore == nil) {
		return fmt.Errorf("invalid key: must be %d bytes long, and only in a request to change, await or restore "+
			"files", deadman.KeySize)
	}
	switch {
	case r.WriteKmsg != nil:
		return r.WriteKmsg.Validate()
	case r.Change != nil:
		return r.Change.Validate()
	case r.Diagnose != nil:
		return r.Diagnose.Validate()
	case r.WriteModule != nil:
		return r.WriteModule.Validate()
	case r.Firewall != nil:
		return r.Firewall.Validate()
	case r.FailDevices != nil:
		return r.FailDevices.Validate()
	case r.ResetGPU != nil:
		return r.ResetGPU.Validate()
	}
	return nil
}
