// Package dcgm injects XIDs into the cache of DCGM's host engine on a node, with dcgmi in the engine's own pod. Only
// clients of this engine see the XIDs: an exporter that is connected to it, health watches, and policies.
//
// dcgmi's arguments and output are taken from DCGM's source (dcgmi/DcgmiTest.cpp, DeviceMonitor.cpp and Query.cpp in
// DCGM 4, commit 72fa3fe). They have not been tested with DCGM itself.
package dcgm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// UndoKind is the ledger.Undo.Kind for injected XIDs.
const UndoKind = "dcgm"

// field is DCGM_FI_DEV_XID_ERRORS, the last XID of a GPU.
const field = "230"

// Injection injects an XID into the host engine on a node.
type Injection struct {
	Engine Engine
	Node   string
	XID    int
	// GPUs returns the UUIDs of the GPUs with the fault. It is called before anything is changed.
	GPUs func(ctx context.Context, r fault.Recorder) ([]string, error)
}

// undo is the content of ledger.Undo.Data. Anyone with permission to write ConfigMaps may have written it. At most, it
// can set the last XID of GPUs in the host engine on the step's node.
type undo struct {
	Namespace string         `json:"namespace"`
	Pod       string         `json:"pod"`
	UID       string         `json:"uid"`
	Before    map[uint16]int `json:"before"` // last XID of each GPU, by the engine's GPU number
}

// Change returns the change to the node, for use in a fault.Plan.
func (in Injection) Change(action string) fault.Change {
	return fault.Change{
		Target: ledger.Target{Kind: "Node", Name: in.Node}, Action: action, Undo: ledger.Undo{Kind: UndoKind},
		Apply: in.apply,
	}
}

// Check returns an error if no host engine responds on the node.
func (in Injection) Check(ctx context.Context) error {
	_, _, err := in.Engine.find(ctx, in.Node)
	return err
}

func (in Injection) apply(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
	pod, known, err := in.Engine.find(ctx, in.Node)
	if err != nil {
		return nil, err
	}
	chosen, err := in.GPUs(ctx, r)
	if err != nil {
		return nil, err
	}
	u := undo{Namespace: pod.Namespace, Pod: pod.Name, UID: string(pod.UID), Before: map[uint16]int{}}
	for _, uuid := range chosen {
		id, ok := known[strings.ToLower(uuid)]
		if !ok {
			return nil, fmt.Errorf("the host engine in pod %s does not know GPU %q", pod.Name, uuid)
		}
		if u.Before[id], err = in.Engine.last(ctx, pod, id); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(u)
	if err != nil {
		return nil, fmt.Errorf("encode the undo: %w", err)
	}
	if err := r.Save(ctx, func(s *ledger.Step) { s.Undo.Data = text }); err != nil {
		return nil, err
	}
	var evidence []ledger.Evidence
	for id := range u.Before {
		r.Progress(fmt.Sprintf("injecting into the host engine in pod %s", pod.Name))
		if err := in.Engine.set(ctx, pod, id, in.XID); err != nil {
			return evidence, err
		}
		evidence = append(evidence, ledger.NewEvidence("pod "+pod.Name, "dcgmi dmon: the last XID of GPU %d is %d", id,
			in.XID))
	}
	return evidence, nil
}

// Engine finds and queries host engines.
type Engine struct {
	Client kubernetes.Interface
	Execer debugpod.Execer
}

// find returns the pod with the host engine on a node, and the engine's GPU numbers by UUID in lower case. An exporter
// without its own engine also has dcgmi, but gets no response.
func (e Engine) find(ctx context.Context, node string) (*corev1.Pod, map[string]uint16, error) {
	pods, err := e.podsOn(ctx, node)
	if err != nil {
		return nil, nil, err
	}
	why := fmt.Errorf("node %s has no pod of DCGM (nvidia-dcgm) or dcgm-exporter: omit the dcgm layer", node)
	for _, component := range components {
		for i := range pods {
			pod := &pods[i]
			if facts.ComponentOf(pod.Labels, &pod.Spec) != component {
				continue
			}
			// If a module is disabled, the exit code is 223 even though the list is complete
			// (KempnerInstitute/kempnerpulse#15).
			out, err := e.dcgmi(ctx, pod, "discovery", "-l")
			if known := parseGPUs(out); len(known) > 0 {
				return pod, known, nil
			}
			if err == nil {
				err = errors.New("no GPUs listed")
			}
			why = fmt.Errorf("no host engine responds in pod %s in namespace %s: omit the dcgm layer (%w)", pod.Name,
				pod.Namespace, err)
		}
	}
	return nil, nil, why
}

// components are the components whose pods may have a host engine, in the order in which they are queried.
var components = []facts.Component{facts.DCGM, facts.DCGMExporter}

// podsOn returns the running pods of the components on a node.
func (e Engine) podsOn(ctx context.Context, node string) ([]corev1.Pod, error) {
	list, err := e.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("list the pods on node %s: %w", node, err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		return p.Status.Phase != corev1.PodRunning || !slices.Contains(components, facts.ComponentOf(p.Labels, &p.Spec))
	}), nil
}

// last returns the last XID of a GPU, or 0 if the engine has not recorded one.
func (e Engine) last(ctx context.Context, pod *corev1.Pod, id uint16) (int, error) {
	out, err := e.dcgmi(ctx, pod, "dmon", "-e", field, "-i", strconv.Itoa(int(id)), "-c", "1")
	if xid, ok := parseXID(out, id); ok {
		return xid, nil
	}
	if err == nil {
		err = fmt.Errorf("unexpected output %q", firstLine(out))
	}
	return 0, fmt.Errorf("read the last XID of GPU %d from the host engine in pod %s: %w", id, pod.Name, err)
}

// setTimeout is the maximum time until the engine reports an injected value. dcgmi sets the value's timestamp one
// second ahead.
const setTimeout = 10 * time.Second

// set injects xid as the last XID of a GPU, and waits until the engine reports it.
func (e Engine) set(ctx context.Context, pod *corev1.Pod, id uint16, xid int) error {
	out, err := e.dcgmi(ctx, pod, "test", "--inject", "--gpuid", strconv.Itoa(int(id)), "-f", field, "-v",
		strconv.Itoa(xid))
	if err == nil && !bytes.Contains(out, []byte("Successfully injected")) {
		err = fmt.Errorf("unexpected output %q", firstLine(out))
	}
	if err != nil {
		return fmt.Errorf("inject XID %d into the host engine in pod %s: %w", xid, pod.Name, err)
	}
	limited, cancel := context.WithTimeout(ctx, setTimeout)
	defer cancel()
	for {
		now, err := e.last(limited, pod, id)
		if err == nil && now == xid {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("the last XID of GPU %d is %d in the host engine in pod %s, not %d", id, now, pod.Name, xid)
		}
		select {
		case <-limited.Done():
			return err
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// mostOutput limits the amount of dcgmi's output to read, in bytes.
const mostOutput = 64 << 10

// limited is a buffer that drops output beyond mostOutput.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	_, _ = l.Buffer.Write(p[:min(len(p), mostOutput-l.Len())])
	return len(p), nil
}

// dcgmi runs dcgmi in the first container of a pod. The output is valid even if there is an error.
func (e Engine) dcgmi(ctx context.Context, pod *corev1.Pod, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	var out, said limited
	err := e.Execer.Exec(ctx, pod, pod.Spec.Containers[0].Name, append([]string{"dcgmi"}, args...),
		debugpod.Streams{In: strings.NewReader(""), Out: &out, Err: &said})
	if err != nil {
		if text := firstLine(append(out.Bytes(), said.Bytes()...)); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
	}
	return out.Bytes(), err
}

func firstLine(out []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return strings.ToValidUTF8(line, "")
}

var (
	gpuRow  = regexp.MustCompile(`^\|\s*(\d{1,4})\s*\|`)
	uuidRow = regexp.MustCompile(`Device UUID: (GPU-[0-9a-fA-F-]{36})`)
	xidRow  = regexp.MustCompile(`(?m)^\s*GPU\s+(\d{1,4})\s+(\d{1,5}|N/A)\s*$`)
)

// parseGPUs parses the table of `dcgmi discovery -l`.
func parseGPUs(out []byte) map[string]uint16 {
	known := map[string]uint16{}
	id := -1
	for line := range strings.Lines(string(out)) {
		if m := gpuRow.FindStringSubmatch(line); m != nil {
			id, _ = strconv.Atoi(m[1])
		}
		if m := uuidRow.FindStringSubmatch(line); m != nil && id >= 0 {
			known[strings.ToLower(m[1])] = uint16(id)
		}
	}
	return known
}

// parseXID parses the row of a GPU in the output of `dcgmi dmon -e 230 -c 1`.
func parseXID(out []byte, id uint16) (xid int, ok bool) {
	for _, m := range xidRow.FindAllSubmatch(out, -1) {
		if string(m[1]) == strconv.Itoa(int(id)) {
			xid, _ = strconv.Atoi(string(m[2])) // N/A becomes 0: no XID yet
			return xid, true
		}
	}
	return 0, false
}
