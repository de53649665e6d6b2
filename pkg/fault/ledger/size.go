package ledger

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
)

// Sizes of a record, in bytes.
const (
	// MaxSize is the maximum size of a record as JSON.
	MaxSize = 8 << 20
	// MaxStored is the maximum size of the stored form of a record: the API server's limit for the data of a ConfigMap
	// (1 MiB, MaxSecretSize).
	MaxStored = 1 << 20
	// maxPlain is the maximum size of a record that is stored as plain JSON, which kubectl shows. Larger records are
	// compressed to about a sixth of their size, because they are rewritten after every few steps of a run.
	maxPlain = 64 << 10
	// roomToEnd is the space that is reserved when a record is created, so that the result of every step can be added
	// later.
	roomToEnd = 128 << 10
	// roomToRevert is the space that is reserved until a run ends, because a run whose record cannot be closed could
	// never be reverted.
	roomToRevert = 64 << 10
	// undoneSize is the approximate number of bytes that undoing a step adds to a compressed record.
	undoneSize = 32
	// resultSize is the approximate number of bytes that the result of a step (times, evidence, a message) adds to a
	// compressed record.
	resultSize = 128
)

// The keys of a record in the data and the binary data of its ConfigMap. A record uses one of them.
const (
	dataKey = "run.json"
	gzipKey = "run.json.gz"
)

// TooLargeError means that a record does not fit into a ConfigMap. Nothing was written.
type TooLargeError struct {
	ID          string
	Size, Limit int // in bytes
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the record of run %s would be %d KiB, but at most %d KiB fit: select fewer targets",
		e.ID, e.Size>>10, max(0, e.Limit)>>10)
}

// limitOf returns the maximum stored size of the record of a run that has started. Until the run has finished, the
// limit leaves room for the revert.
func limitOf(run Run) int {
	if run.Phase == Planned || run.Phase == Applying {
		return MaxStored - max(roomToRevert, undoneSize*len(run.Steps))
	}
	return MaxStored
}

// put stores the JSON of a run in a ConfigMap. limit is the maximum stored size.
func put(cm *corev1.ConfigMap, id string, text []byte, limit int) error {
	if len(text) > MaxSize {
		return &TooLargeError{ID: id, Size: len(text), Limit: MaxSize}
	}
	if len(text) <= min(maxPlain, limit) {
		cm.Data, cm.BinaryData = map[string]string{dataKey: string(text)}, nil
		return nil
	}
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	if err == nil {
		_, err = w.Write(text)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return fmt.Errorf("compress the record of run %s: %w", id, err)
	}
	if packed.Len() > limit {
		return &TooLargeError{ID: id, Size: packed.Len(), Limit: limit}
	}
	cm.Data, cm.BinaryData = nil, map[string][]byte{gzipKey: packed.Bytes()}
	return nil
}

// get returns the JSON of a run from a ConfigMap.
func get(cm *corev1.ConfigMap) ([]byte, error) {
	text, plain := cm.Data[dataKey]
	packed, compressed := cm.BinaryData[gzipKey]
	switch {
	case plain && compressed:
		return nil, fmt.Errorf("configmap %s has both keys %s and %s", cm.Name, dataKey, gzipKey)
	case plain:
		return []byte(text), nil
	case !compressed:
		return nil, fmt.Errorf("configmap %s has no key %s", cm.Name, dataKey)
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("read %s of configmap %s: %w", gzipKey, cm.Name, err)
	}
	unpacked, err := io.ReadAll(io.LimitReader(r, MaxSize+1))
	if err == nil && len(unpacked) > MaxSize {
		err = errors.New("the record is too large")
	}
	if err != nil {
		return nil, fmt.Errorf("read %s of configmap %s: %w", gzipKey, cm.Name, err)
	}
	return unpacked, nil
}

// EvidenceLimit returns the maximum size in bytes of each step's evidence. With this limit, the record has room for the
// evidence of all steps.
func EvidenceLimit(steps int) int { return min(512<<10, MaxSize/4/steps) }

// MessageLimit returns the maximum size in bytes of an Undoer's message in each step of a run.
func MessageLimit(steps int) int { return min(4096, max(200, MaxSize/8/steps)) }
