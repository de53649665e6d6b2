package device

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/checkpoint"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

// record contains the data required to end a fault. It is written before the fault starts.
type record struct {
	Run      string   `json:"run"`
	Resource string   `json:"resource"`
	Endpoint string   `json:"endpoint"` // socket of the real plugin
	Options  []byte   `json:"options,omitempty"`
	Devices  []string `json:"devices"` // failed
	Healthy  []string `json:"healthy"` // healthy devices before the fault
	// Topologies contains the TopologyInfo of devices by ID.
	Topologies map[string][]byte `json:"topologies,omitempty"`
	Pods       []string          `json:"pods,omitempty"` // UIDs of pods that hold failed devices
	Until      time.Time         `json:"until"`

	phase phase
}

// ended reports whether the fault of a record returned by records has already ended.
func (r record) ended() bool { return r.phase == phaseEnded }

// status is the progress of a fault.
type status struct {
	Phase phase `json:"phase"`
	// Cause describes why the fault ended. Problem describes why it never started.
	Cause   string    `json:"cause,omitempty"`
	Problem string    `json:"problem,omitempty"`
	Healthy int       `json:"healthy,omitempty"` // number of healthy devices during the fault
	Time    time.Time `json:"time"`
}

type phase string

const (
	phaseStarting phase = "starting"
	phaseFailed   phase = "failed" // the devices are unhealthy
	phaseEnded    phase = "ended"
)

const (
	recordName = "record.json"
	statusName = "status.json"
	logName    = "log"
)

var errNoRecord = errors.New("the node has no record of the run")

func (n node) dir(run string) string        { return filepath.Join(n.state, run) }
func (n node) file(run, name string) string { return filepath.Join(n.state, run, name) }
func (n node) checkpointFile() string       { return filepath.Join(n.plugins, checkpoint.Name) }
func (n node) socket(run string) string     { return filepath.Join(n.plugins, socketName(run)) }
func (n node) removeSocket(run string)      { _ = os.Remove(n.socket(run)) }
func (n node) forget(run string) error      { return os.RemoveAll(n.dir(run)) }
func (n node) save(run string, s status) error {
	s.Time = time.Now().UTC()
	return n.write(run, statusName, s)
}

// checkpoint reads the kubelet's checkpoint. The pods of device plugins can write to its directory, so the content is
// untrusted.
func (n node) checkpoint() (checkpoint.Checkpoint, error) {
	raw, err := fs.ReadFile(hostfs.FS(n.plugins).Guarded(), checkpoint.Name)
	if err != nil {
		return checkpoint.Checkpoint{}, err
	}
	c, err := checkpoint.Parse(raw)
	if err != nil {
		err = fmt.Errorf("parse %s: %w", n.checkpointFile(), err)
	}
	return c, err
}

// socketName returns the name of a run's own socket.
func socketName(run string) string { return socketPrefix + run + ".sock" }

// create writes the record of a new fault.
func (n node) create(r record) error {
	if err := os.MkdirAll(n.state, 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(n.dir(r.Run), 0o700); err != nil {
		return err
	}
	return errors.Join(n.write(r.Run, recordName, r), n.save(r.Run, status{Phase: phaseStarting}))
}

// write atomically replaces a file in a record.
func (n node) write(run, name string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	temporary := n.file(run, name+".new")
	if err := os.WriteFile(temporary, raw, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, n.file(run, name))
}

func (n node) load(run string) (record, error) {
	var r record
	if err := deadman.ValidRun(run); err != nil {
		return r, err
	}
	err := n.read(run, recordName, &r)
	if errors.Is(err, fs.ErrNotExist) {
		return r, errNoRecord
	}
	return r, err
}

func (n node) status(run string) (s status, err error) { return s, n.read(run, statusName, &s) }

func (n node) read(run, name string, v any) error {
	raw, err := os.ReadFile(n.file(run, name))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("parse %s: %w", n.file(run, name), err)
	}
	return nil
}

// records returns the readable records on the node.
func (n node) records() []record {
	entries, _ := os.ReadDir(n.state)
	var all []record
	for _, e := range entries {
		r, err := n.load(e.Name())
		if err != nil || r.Run != e.Name() {
			continue
		}
		s, _ := n.status(r.Run)
		r.phase = s.Phase
		all = append(all, r)
	}
	return all
}
