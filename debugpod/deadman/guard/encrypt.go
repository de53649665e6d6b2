//go:build linux

package guard

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// The files of an encrypted record are encrypted with Host.Key, so that users who become root on the node cannot read
// what was changed. Only the client and the memory of the dead man's switch contain the key, so an encrypted record has
// neither restore.sh, which could not read it, nor a log.
//
// An encrypted file is encryptedMark, a random nonce and the AES-256-GCM ciphertext of the padded content. An original
// file, before-N, also has before-N-room, into which it is decrypted when it is restored.

const encryptedMark = deadman.EncryptedMark + "\n"

// paddedTo is the block size for padding. Content is padded to a multiple of this number of bytes, so that the size of
// the content does not identify a file.
const paddedTo = 4096

// errEncrypted means that a record is encrypted with a key that this process does not have.
var errEncrypted = errors.New("the record is encrypted: only `kubectl gpu-fault revert` with the run's record in the " +
	"cluster, or the run's dead man's switch, can restore it")

// ReadKey reads the key from a pipe. The process that started this dead man's switch wrote the key to the pipe. ReadKey
// returns nil if the pipe contains no key.
func ReadKey(r io.Reader) ([]byte, error) {
	key, err := io.ReadAll(io.LimitReader(r, deadman.KeySize+1))
	if err != nil || len(key) == 0 {
		return nil, err
	}
	if len(key) != deadman.KeySize {
		return nil, fmt.Errorf("the key is %d bytes long, not %d", len(key), deadman.KeySize)
	}
	return key, nil
}

// encrypts reports whether the host encrypts its records.
func (h Host) encrypts() bool { return h.Key != nil }

// keyPipe returns a pipe from which a new process reads the key. The caller closes the pipe.
func (h Host) keyPipe() (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = w.Close() }()
	if _, err := w.Write(h.Key); err != nil {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}

// encrypt encrypts the content of a run's file. Without a key, it returns the content unchanged.
func (h Host) encrypt(run, name string, content []byte) ([]byte, error) {
	if !h.encrypts() {
		return content, nil
	}
	box, err := h.box()
	if err != nil {
		return nil, err
	}
	padded := binary.BigEndian.AppendUint64(nil, uint64(len(content)))
	padded = append(padded, content...)
	padded = append(padded, make([]byte, (paddedTo-len(padded)%paddedTo)%paddedTo)...)
	nonce := make([]byte, box.NonceSize())
	_, _ = rand.Read(nonce) // never fails
	return box.Seal(append([]byte(encryptedMark), nonce...), nonce, padded, identity(run, name)), nil
}

// decrypt decrypts the content of a run's file. The error wraps errEncrypted if the file is encrypted with another key.
func (h Host) decrypt(run, name string, raw []byte) ([]byte, error) {
	raw, marked := bytes.CutPrefix(raw, []byte(encryptedMark))
	switch {
	case !marked: // even with a key: editing the record in the cluster must not prevent the restore
		return raw, nil
	case !h.encrypts():
		return nil, errEncrypted
	}
	box, err := h.box()
	if err != nil {
		return nil, err
	}
	if len(raw) < box.NonceSize() {
		return nil, fmt.Errorf("%s of run %s is damaged: %w", name, run, errEncrypted)
	}
	padded, err := box.Open(nil, raw[:box.NonceSize()], raw[box.NonceSize():], identity(run, name))
	if err != nil || len(padded) < 8 || binary.BigEndian.Uint64(padded) > uint64(len(padded)-8) {
		return nil, fmt.Errorf("%s of run %s is damaged, or the key is wrong: %w", name, run, errEncrypted)
	}
	return padded[8:][:binary.BigEndian.Uint64(padded)], nil
}

// box returns the cipher for the key.
func (h Host) box() (cipher.AEAD, error) {
	block, err := aes.NewCipher(h.Key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// roomSuffix is the suffix of the file that reserves space for the original content of an encrypted file.
const roomSuffix = "-room"

// unpack writes the original content into the space reserved for it, so that a restore works on a full disk. If it is
// interrupted, the encrypted content is still intact.
func (s *site) unpack(data []byte, meta deadman.Meta) (file, error) {
	room := file{s.record, s.before.name + roomSuffix}
	return room, room.overwrite(data, &meta)
}

// reserve reserves space for the decrypted content of a prepared file.
func (f file) reserve(size int) error {
	filler := make([]byte, (size+paddedTo-1)/paddedTo*paddedTo)
	_, _ = rand.Read(filler) // a file system might not allocate space for zeros
	return file{f.dir, f.name + roomSuffix}.create(filler, ours(0o600))
}

// identity returns the data that is authenticated with a file, so that one encrypted file cannot be substituted for
// another.
func identity(run, name string) []byte { return []byte(run + "/" + name) }
