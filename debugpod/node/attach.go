package node

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"os"
)

// The end of an executable that carries its request: the executable, the request, and then the footer: the SHA-256 of
// both, the length of each in eight bytes (big endian), and the magic. ELF loaders ignore what follows the last
// section.
const (
	magic      = "gpufault"
	footerSize = sha256.Size + 8 + 8 + len(magic)
)

// Attach returns the helper with a request at its end, so that both reach a node in one stream and one exec. The helper
// checks with the hash that it arrived whole.
func Attach(helper []byte, req Request) ([]byte, error) {
	raw, err := req.Encode()
	if err != nil {
		return nil, err
	}
	whole := make([]byte, 0, len(helper)+len(raw)+footerSize)
	whole = append(append(whole, helper...), raw...)
	sum := sha256.Sum256(whole)
	whole = append(whole, sum[:]...)
	whole = binary.BigEndian.AppendUint64(whole, uint64(len(helper)))
	whole = binary.BigEndian.AppendUint64(whole, uint64(len(raw)))
	return append(whole, magic...), nil
}

// detach returns the request at the end of an executable of size bytes, after checking that all of it is as Attach made
// it.
func detach(exe io.ReaderAt, size int64) ([]byte, error) {
	footer := make([]byte, footerSize)
	if size < int64(footerSize) {
		return nil, errors.New("it is too short")
	}
	if err := readFull(exe, footer, size-int64(footerSize)); err != nil {
		return nil, err
	}
	if string(footer[footerSize-len(magic):]) != magic {
		return nil, errors.New("its end is missing")
	}
	lengths := footer[sha256.Size:]
	helper, request := binary.BigEndian.Uint64(lengths), binary.BigEndian.Uint64(lengths[8:])
	body := uint64(size) - uint64(footerSize)
	if request > MaxRequest || helper > body || helper+request != body {
		return nil, errors.New("its length is not the one that was sent")
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, io.NewSectionReader(exe, 0, int64(body))); err != nil {
		return nil, err
	}
	if [sha256.Size]byte(hash.Sum(nil)) != [sha256.Size]byte(footer) {
		return nil, errors.New("its SHA-256 is not the one that was sent")
	}
	raw := make([]byte, request)
	return raw, readFull(exe, raw, int64(helper))
}

// CheckProgram reports whether a helper that came in an image is the one that the client carries. want is its SHA-256
// in hexadecimal.
func CheckProgram(path, want string) *Error {
	file, err := os.Open(path)
	if err != nil {
		return errorf(CodeOtherHelper, "read the helper's own file: %v", err)
	}
	defer func() { _ = file.Close() }()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return errorf(CodeOtherHelper, "read the helper's own file: %v", err)
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != want {
		return errorf(CodeOtherHelper,
			"the image has another node helper than this build of kubectl gpu-fault (SHA-256 %.12s, wanted %.12s): "+
				"its tag was moved, or it is of another build; make it anew with kubectl gpu-fault image push or save, or name it by its digest",
			got, want)
	}
	return nil
}

func readFull(r io.ReaderAt, into []byte, at int64) error {
	_, err := io.ReadFull(io.NewSectionReader(r, at, int64(len(into))), into)
	return err
}
