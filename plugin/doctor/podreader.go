package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
)

// podReader reads nodes through debug pods.
type podReader struct {
	cluster *kube.Cluster
	store   *ledger.Store
	pods    podflags.Flags
}

func newPodReader(cluster *kube.Cluster, connection *kube.Connection, pods podflags.Flags) *podReader {
	return &podReader{cluster, ledger.New(cluster.Client, connection.LedgerNamespace), pods}
}

// Admitted implements reader.
func (p *podReader) Admitted(ctx context.Context, nodeName string) error {
	missing, _, err := fault.Missing(ctx, p.cluster.Client, podPermissions(p.store.Namespace), fault.DefaultParallel)
	if err == nil && len(missing) > 0 { // if the access review failed, try anyway
		roles := fault.RolesFor([]string{"doctor"}, "", "")
		return &fault.PermissionError{Missing: missing, Command: p.store.Command(roles...)}
	}
	spec := p.spec("preflight", nodeName)
	if err := fault.CheckNamespaceAccess(ctx, p.cluster.Client, spec.Namespace); err != nil {
		return err
	}
	return p.pods.Try(ctx, p.cluster, spec)
}

func (p *podReader) spec(run, nodeName string) debugpod.Spec {
	spec := p.pods.Spec(run, nodeName, p.store.Namespace)
	spec.Memory = debugpod.DiagnoseMemory
	return spec
}

// Prepare implements reader.
func (p *podReader) Prepare(ctx context.Context) (bool, error) {
	created, err := p.store.EnsureNamespace(ctx)
	return created, kube.Explain(err)
}

// Read implements reader.
func (p *podReader) Read(
	ctx context.Context, nodeName string, progress func(string),
) (found *api.Diagnosis, err error) {
	id, err := p.store.NewID("doctor")
	if err != nil {
		return nil, err
	}
	session, err := p.start(ctx, id, nodeName, progress)
	if err != nil {
		return nil, err
	}
	late := fmt.Errorf("timed out after %s: the pod was running, but reading the node took too long; increase --timeout", p.pods.Timeout)
	limited, cancel := context.WithTimeoutCause(ctx, p.pods.Timeout, late)
	defer cancel()
	defer func() {
		// A pod that could not be deleted terminates at its deadline, and the result remains valid.
		if closing := session.Close(ctx); closing != nil {
			progress("the debug pod was not deleted: " + reason(closing))
		} else if err == nil {
			progress("read; debug pod deleted")
		}
	}()
	progress("reading kubelet, runtime, driver and kernel log")
	found, err = session.Diagnose(limited, api.Diagnose{})
	if limited.Err() != nil { // the result is incomplete
		return nil, context.Cause(limited)
	}
	return found, err
}

// explaining is the time, in addition to --timeout, for determining why the pod is not running and for deleting the
// pod.
const explaining = 15 * time.Second

// start starts the pod. The runner enforces --timeout itself, and then reports the reason why the pod did not start.
func (p *podReader) start(ctx context.Context, id, nodeName string, progress func(string)) (*debugpod.Session, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.pods.Timeout+explaining,
		fmt.Errorf("not started within %s", p.pods.Timeout))
	defer cancel()
	return p.pods.Start(ctx, p.cluster, p.spec(id, nodeName), progress)
}
