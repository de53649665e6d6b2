package cri

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/rpc"
)

// The field numbers are those in pkg/apis/runtime/v1/api.proto in k8s.io/cri-api. Other fields are skipped.

// verboseStatus returns a StatusRequest with verbose (field 1) set.
func verboseStatus() []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1)
}

// decodeVersion decodes a VersionResponse: runtime_name = 2, runtime_version = 3.
func decodeVersion(raw []byte) (name, version string, err error) {
	err = rpc.Fields(raw, func(value rpc.Field) error {
		switch value.Number {
		case 2:
			name = string(value.Bytes)
		case 3:
			version = string(value.Bytes)
		}
		return nil
	})
	if err == nil && name == "" {
		err = errors.New("the runtime has no name")
	}
	return name, version, err
}

// decodeStatus decodes a StatusResponse: status = 1, info = 2 (a map), runtime_handlers = 3.
func decodeStatus(raw []byte, info *Info) error {
	err := rpc.Fields(raw, func(value rpc.Field) error {
		switch value.Number {
		case 1:
			return rpc.Fields(value.Bytes, func(value rpc.Field) error {
				if value.Number != 1 { // conditions
					return nil
				}
				return decodeCondition(value.Bytes, info)
			})
		case 2:
			return decodeInfo(value.Bytes, info)
		case 3:
			name, err := first(value.Bytes)
			if name != "" { // the default handler is also listed without a name
				info.Handlers = append(info.Handlers, name)
			}
			return err
		}
		return nil
	})
	slices.Sort(info.Handlers)
	return err
}

// decodeCondition decodes a RuntimeCondition: type = 1, status = 2, reason = 3, message = 4.
func decodeCondition(raw []byte, info *Info) error {
	var name, reason, message string
	var met bool
	err := rpc.Fields(raw, func(value rpc.Field) error {
		switch value.Number {
		case 1:
			name = string(value.Bytes)
		case 2:
			met = value.Value != 0
		case 3:
			reason = string(value.Bytes)
		case 4:
			message = string(value.Bytes)
		}
		return nil
	})
	if name == "RuntimeReady" {
		info.Ready, info.NotReady = met, ""
		if !met {
			info.NotReady = strings.TrimSuffix(reason+": "+message, ": ")
		}
	}
	return err
}

// decodeInfo decodes a map entry: key = 1, value = 2.
func decodeInfo(raw []byte, info *Info) error {
	var value []byte
	key, err := first(raw)
	if err != nil || key != "config" {
		return err
	}
	err = rpc.Fields(raw, func(field rpc.Field) error {
		if field.Number == 2 {
			value = field.Bytes
		}
		return nil
	})
	if json.Valid(value) { // other runtimes may return anything
		info.Config = json.RawMessage(value)
	}
	return err
}

// first returns the string in field 1 of a message.
func first(raw []byte) (text string, err error) {
	err = rpc.Fields(raw, func(value rpc.Field) error {
		if value.Number == 1 {
			text = string(value.Bytes)
		}
		return nil
	})
	return text, err
}
