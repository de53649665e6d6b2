package cri

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// The field numbers are those of pkg/apis/runtime/v1/api.proto in k8s.io/cri-api. Other fields are skipped.

// verboseStatus returns a StatusRequest: verbose = 1.
func verboseStatus() []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1)
}

// decodeVersion decodes a VersionResponse: runtime_name = 2, runtime_version = 3.
func decodeVersion(raw []byte) (name, version string, err error) {
	err = fields(raw, func(number protowire.Number, value field) error {
		switch number {
		case 2:
			name = string(value.bytes)
		case 3:
			version = string(value.bytes)
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
	err := fields(raw, func(number protowire.Number, value field) error {
		switch number {
		case 1:
			return fields(value.bytes, func(number protowire.Number, value field) error {
				if number != 1 { // conditions
					return nil
				}
				return decodeCondition(value.bytes, info)
			})
		case 2:
			return decodeInfo(value.bytes, info)
		case 3:
			name, err := first(value.bytes)
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
	err := fields(raw, func(number protowire.Number, value field) error {
		switch number {
		case 1:
			name = string(value.bytes)
		case 2:
			met = value.number != 0
		case 3:
			reason = string(value.bytes)
		case 4:
			message = string(value.bytes)
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

// decodeInfo decodes an entry of the map: key = 1, value = 2.
func decodeInfo(raw []byte, info *Info) error {
	var value []byte
	key, err := first(raw)
	if err != nil || key != "config" {
		return err
	}
	err = fields(raw, func(number protowire.Number, f field) error {
		if number == 2 {
			value = f.bytes
		}
		return nil
	})
	if json.Valid(value) { // other runtimes may return anything
		info.Config = json.RawMessage(value)
	}
	return err
}

// first returns field 1 of a message, a string.
func first(raw []byte) (text string, err error) {
	err = fields(raw, func(number protowire.Number, value field) error {
		if number == 1 {
			text = string(value.bytes)
		}
		return nil
	})
	return text, err
}

// field is the value of a field: bytes for strings and messages, number for varints.
type field struct {
	bytes  []byte
	number uint64
}

// fields calls each for every field of a message. As usual in protobuf, the last value of a repeated scalar field wins.
func fields(raw []byte, each func(protowire.Number, field) error) error {
	for len(raw) > 0 {
		number, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return protowire.ParseError(n)
		}
		raw = raw[n:]
		var value field
		switch kind {
		case protowire.BytesType:
			value.bytes, n = protowire.ConsumeBytes(raw)
		case protowire.VarintType:
			value.number, n = protowire.ConsumeVarint(raw)
		default:
			n = protowire.ConsumeFieldValue(number, kind, raw)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		raw = raw[n:]
		if err := each(number, value); err != nil {
			return err
		}
	}
	return nil
}
