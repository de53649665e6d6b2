package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"io"
	"slices"
)

// An executable that carries a request consists of the executable, the request and a footer. The footer contains the
// SHA-256 digest of the executable and the request together, the length of each of them in eight bytes (big endian),
// and the magic string. ELF loaders ignore data after the last section.
const (
	magic      = "gpufault"
	footerSize = sha256.Size + 8 + 8 + len(magic)
)

// Attach returns the helper with a request appended, so that both reach a node in one stream and one exec. The helper
// uses the hash to verify its own integrity.
func Attach(helper []byte, req Request) ([]byte, error) {
	tail, err := Attachment(Sum(helper), len(helper), req)
	return append(bytes.Clone(helper), tail...), err
}

// Sum returns, for use by Attachment, the state of the hash after the helper has been hashed.
func Sum(helper []byte) hash.Cloner {
	sum := sha256.New().(hash.Cloner) // as documented
	_, _ = sum.Write(helper)          // never fails
	return sum
}

// Attachment returns the data that Attach appends to a helper. size is the size of the helper in bytes. Attachment does
// not change the hash.
func Attachment(helper hash.Cloner, size int, req Request) ([]byte, error) {
	raw, err := req.Encode()
	if err != nil {
		return nil, err
	}
	sum, err := helper.Clone()
	if err != nil {
		return nil, err
	}
	_, _ = sum.Write(raw) // never fails
	tail := sum.Sum(slices.Clone(raw))
	tail = binary.BigEndian.AppendUint64(tail, uint64(size))
	tail = binary.BigEndian.AppendUint64(tail, uint64(len(raw)))
	return append(tail, magic...), nil
}

// Detach returns the request at the end of an executable, after verifying the hash of the executable and the request.
// size is the size of the executable in bytes.
func Detach(exe io.ReaderAt, size int64) ([]byte, error) {
	footer := make([]byte, footerSize)
	if size < int64(footerSize) {
		return nil, errors.New("the executable is too short")
	}
	if err := readFull(exe, footer, size-int64(footerSize)); err != nil {
		return nil, err
	}
	if string(footer[footerSize-len(magic):]) != magic {
		return nil, errors.New("the end of the executable is missing")
	}
	lengths := footer[sha256.Size:]
	helper, request := binary.BigEndian.Uint64(lengths), binary.BigEndian.Uint64(lengths[8:])
	body := uint64(size) - uint64(footerSize)
	if request > MaxRequest || helper > body || helper+request != body {
		return nil, errors.New("the length of the executable does not match the footer")
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, io.NewSectionReader(exe, 0, int64(body))); err != nil {
		return nil, err
	}
	if [sha256.Size]byte(hash.Sum(nil)) != [sha256.Size]byte(footer) {
		return nil, errors.New("the SHA-256 digest of the executable does not match the footer")
	}
	raw := make([]byte, request)
	return raw, readFull(exe, raw, int64(helper))
}

func readFull(r io.ReaderAt, into []byte, at int64) error {
	_, err := io.ReadFull(io.NewSectionReader(r, at, int64(len(into))), into)
	return err
}
