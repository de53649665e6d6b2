package rpc

import "google.golang.org/protobuf/encoding/protowire"

// Field is a field of a protobuf message.
type Field struct {
	Number protowire.Number
	// Bytes is the value of a string or message. Value is the value of a varint.
	Bytes []byte
	Value uint64
	// Raw is the entire field including its tag.
	Raw []byte
}

// Fields calls each for every field of a message. As usual in protobuf, the last value of a repeated scalar field wins.
func Fields(message []byte, each func(Field) error) error {
	for len(message) > 0 {
		number, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return protowire.ParseError(tag)
		}
		field, n := Field{Number: number}, 0
		switch kind {
		case protowire.BytesType:
			field.Bytes, n = protowire.ConsumeBytes(message[tag:])
		case protowire.VarintType:
			field.Value, n = protowire.ConsumeVarint(message[tag:])
		default:
			n = protowire.ConsumeFieldValue(number, kind, message[tag:])
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		field.Raw, message = message[:tag+n], message[tag+n:]
		if err := each(field); err != nil {
			return err
		}
	}
	return nil
}

// Text appends a string field.
func Text(message []byte, number protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(message, number, protowire.BytesType), text)
}

// Message appends a message field.
func Message(message []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(message, number, protowire.BytesType), value)
}
