//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
)

// workloadUndo returns the undo of a CUDA fault that no run has made, in a victim.
func (v *victims) workloadUndo(id string, edits string) map[string]any {
	o := v.objects["Deployment"]
	var list []any
	if err := json.Unmarshal([]byte(edits), &list); err != nil {
		v.t.Fatalf("%v in %s", err, edits)
	}
	return map[string]any{
		"group": "apps", "version": "v1", "resource": "deployments", "kind": "Deployment", "namespace": o.namespace,
		"name": o.name, "uid": o.uid,
		"configMap": cudashim.Name(id), "edits": list, "variable": "LD_PRELOAD",
		"preload": "/gpu-fault/lib/libgpufault.so", "replaced": "rolling",
	}
}

// TestAttackRecordsOfWorkloads: a record of a CUDA fault that no run has made changes no workload.
func TestAttackRecordsOfWorkloads(t *testing.T) {
	t.Parallel()
	v := newVictims(newWriter(setup(t)))
	const id = "cuda-222222"
	spec := `["spec","template","spec"`
	container := spec + `,"containers",{"name":"main"}`
	preload := fmt.Sprintf(
		`[{"path":%s,"env",{"name":"LD_PRELOAD"},"value"],"was":"/tmp/evil.so","ours":"/opt/mine.so"}]`, container,
	)
	job := `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"evil","namespace":"` + v.namespace + `"},"spec":{"template":{"spec":{"restartPolicy":"Never","hostPID":true,
		"containers":[{"name":"main","image":"busybox:1.35","securityContext":{"privileged":true}}]}}}}`
	set := func(change func(d map[string]any)) func() map[string]any {
		return func() map[string]any {
			d := v.workloadUndo(id, preload)
			change(d)
			return d
		}
	}
	recreated := func(original, uid string) func(d map[string]any) {
		return func(d map[string]any) {
			d["recreated"] = map[string]any{"original": json.RawMessage(original), "uid": uid}
		}
	}
	for name, data := range map[string]func() map[string]any{
		"a library of the user's": set(func(map[string]any) {}),
		"an image": func() map[string]any {
			return v.workloadUndo(id,
				fmt.Sprintf(`[{"path":%s,"image"],"was":"evil:1","ours":"busybox:1.35"}]`, container))
		},
		"a variable": func() map[string]any {
			return v.workloadUndo(id,
				fmt.Sprintf(`[{"path":%s,"env",{"name":"MODE"}],"ours":{"name":"MODE","value":"safe"}}]`, container))
		},
		"the host's processes": func() map[string]any {
			return v.workloadUndo(id, fmt.Sprintf(`[{"path":%s,"hostPID"],"was":true,"ours":false}]`, spec))
		},
		"the number of replicas": func() map[string]any {
			return v.workloadUndo(id, `[{"path":["spec","replicas"],"was":50,"ours":0}]`)
		},
		"a volume before": func() map[string]any {
			return v.workloadUndo(id, fmt.Sprintf(
				`[{"path":%s,"volumes",{"name":"gpu-fault-lib"}],"was":{"name":"x","hostPath":{"path":"/"}},"ours":{"name":"gpu-fault-lib"}}]`,
				spec,
			))
		},
		"an affinity of the user's": set(func(d map[string]any) {
			d["pin"] = map[string]any{
				"key": "kubernetes.io/hostname", "operator": "In", "values": []string{v.worker.Name},
			}
		}),
		"a library by another name": set(func(d map[string]any) { d["preload"] = "/opt/mine.so" }),
		"a Job to create": set(func(d map[string]any) {
			recreated(job, "")(d)
			d["group"], d["resource"], d["kind"], d["name"] = "batch", "jobs", "Job", "evil"
		}),
		"a Deployment to create again": set(recreated(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"`+
			v.objects["Deployment"].name+`","namespace":"`+v.namespace+
			`"},"spec":{"template":{"spec":{"containers":[{"name":"main","image":"evil:1"}]}}}}`,
			v.objects["Deployment"].uid)),
		"a binding instead": set(func(d map[string]any) {
			d["group"], d["resource"], d["kind"] = "rbac.authorization.k8s.io", "rolebindings", "RoleBinding"
		}),
		"coredns":                 set(func(d map[string]any) { d["namespace"], d["name"] = "kube-system", "coredns" }),
		"the ConfigMap of others": set(func(d map[string]any) { d["configMap"] = v.objects["ConfigMap"].name }),
		"another state":           set(func(d map[string]any) { d["disarmed"] = "ZXZpbA==" }),
		"owners of fields": set(func(d map[string]any) {
			d["owned"] = []any{map[string]any{
				"manager": "evil", "operation": "Apply", "apiVersion": "apps/v1",
				"fields": json.RawMessage(`{"f:spec":{}}`),
			}}
		}),
	} {
		t.Run(name, func(t *testing.T) {
			d := data()
			target := ledger.Target{
				Kind: d["kind"].(string), Namespace: d["namespace"].(string), Name: d["name"].(string),
				UID: v.objects["Deployment"].uid,
			}
			v.forge(ledger.Run{ID: id, Fault: "cuda", Steps: []ledger.Step{step(target, cudashim.UndoKind, d)}})
			defer v.forget(id)
			v.holds(t, v.see, "revert", id, "--yes")
			v.holds(t, v.see, "leftovers", "--clean", "--dry-run=client")
		})
	}
}

// TestAttackEditedRecords: the record of a genuine CUDA fault that another client has edited, with a new sum, is not
// followed; as it was it is.
func TestAttackEditedRecords(t *testing.T) {
	c := setupCUDA(t)
	w := newWriter(c.env)
	get := c.create(c.deployment("train"))
	c.healthy("train", 1)
	before := asUserSees(t, get())
	id := c.inject("deployment/train", "--xid", "79", "--disarmed")
	broken := asUserSees(t, get())
	var genuine ledger.Run
	w.rewrite(id, func(run *ledger.Run) { genuine = *run })
	edit := func(change func(d map[string]any)) func(run *ledger.Run) {
		return func(run *ledger.Run) {
			*run = genuine
			run.Steps = []ledger.Step{genuine.Steps[0]}
			var d map[string]any
			c.decode(string(run.Steps[0].Undo.Data), &d)
			change(d)
			text, err := json.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			run.Steps[0].Undo.Data = text
		}
	}
	edits := func(d map[string]any) []any { return d["edits"].([]any) }
	see := func() string { return asUserSees(t, get()) }
	for name, change := range map[string]func(run *ledger.Run){
		"another value before": edit(func(d map[string]any) {
			edits(d)[0].(map[string]any)["was"] = map[string]any{"name": "x", "hostPath": map[string]any{"path": "/"}}
		}),
		"one edit more": edit(func(d map[string]any) {
			d["edits"] = append(edits(d),
				map[string]any{"path": []any{"spec", "template", "spec", "hostPID"}, "was": true, "ours": false})
		}),
		"an edit less":              edit(func(d map[string]any) { d["edits"] = edits(d)[1:] }),
		"another state of the shim": edit(func(d map[string]any) { d["disarmed"] = "ZXZpbA==" }),
		"another library":           edit(func(d map[string]any) { d["preload"] = "/opt/mine.so" }),
		"the undo of another kind": func(run *ledger.Run) {
			*run = genuine
			s := genuine.Steps[0]
			s.Undo.Kind = "objects"
			run.Steps = []ledger.Step{s}
		},
		"another object": func(run *ledger.Run) {
			*run = genuine
			s := genuine.Steps[0]
			s.Target.Name = "other"
			run.Steps = []ledger.Step{s}
		},
		"as the step of another ID": func(run *ledger.Run) { *run = genuine; run.ID = "cuda-333333" },
	} {
		t.Run(name, func(t *testing.T) {
			w.rewrite(id, change)
			w.holds(t, see, "revert", "--all", "--yes")
			for _, run := range w.runs("--all") { // whatever the attempt has written
				w.forget(run.ID)
			}
			w.forge(genuine)
		})
	}
	if now := see(); now != broken {
		t.Errorf("an edited record has changed the workload:\n%s", difference(broken, now))
	}
	c.ok("revert", id, "--yes")
	c.same(before, get())
}

// TestAttackReplayedRecords: the record of a run that is over, opened again, undoes nothing that was changed since; one
// that was moved to another ledger, closed or deleted keeps no node from being restored.
func TestAttackReplayedRecords(t *testing.T) {
	w := newWriter(setup(t))
	before := w.files()
	run := w.breaks("--mode", "missing-handler", "--ttl", "5m")
	reopen := func(run *ledger.Run) {
		run.Closed, run.Phase, run.Message = time.Time{}, ledger.Proven, ""
		run.Steps[0].State, run.Steps[0].Undone, run.Steps[0].Message = ledger.StateProven, time.Time{}, ""
	}
	t.Run("moved to another ledger", func(t *testing.T) {
		other := w.ledger + "-b"
		w.kubectlWith(fmt.Sprintf(
			`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q,"labels":{"gpufault.dev/ledger":"true","pod-security.kubernetes.io/enforce":"privileged"}}}`,
			other,
		), "create", "-f", "-")
		t.Cleanup(func() { w.drop(w.cluster.Client.CoreV1().Namespaces(), other) })
		record, err := w.cluster.Client.CoreV1().ConfigMaps(w.ledger).Get(t.Context(), run.ID, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		moved := record.DeepCopy()
		moved.ObjectMeta = metav1.ObjectMeta{
			Name: record.Name, Namespace: other, Labels: record.Labels, Annotations: record.Annotations,
		}
		if _, err := w.cluster.Client.CoreV1().ConfigMaps(other).Create(
			t.Context(), moved, metav1.CreateOptions{},
		); err != nil {
			t.Fatal(err)
		}
		w.pluginWith([]string{"KUBECTL_GPU_FAULT_LEDGER_NAMESPACE=" + other}, "revert", run.ID, "--yes")
		if after := w.files(); after != before {
			t.Errorf("the node's own record was not followed:\n%s", difference(before, after))
		}
	})
	t.Run("opened again", func(t *testing.T) {
		w.ok("revert", run.ID, "--yes")
		w.worker.Sh(t, "sh", "-c",
			`cp -p /etc/containerd/config.toml /root/as-it-was && echo "# by the administrator" >> /etc/containerd/config.toml`)
		t.Cleanup(func() {
			w.worker.Sh(t, "sh", "-c",
				`cat /root/as-it-was > /etc/containerd/config.toml && touch -r /root/as-it-was /etc/containerd/config.toml`)
		})
		w.rewrite(run.ID, reopen)
		w.holds(t, w.files, "revert", run.ID, "--yes")
	})
	t.Run("closed by another client", func(t *testing.T) {
		run := w.breaks("--mode", "missing-handler", "--ttl", "1m")
		w.rewrite(run.ID, func(run *ledger.Run) { run.Closed, run.Phase = time.Now(), ledger.Reverted })
		if found := w.plugin("leftovers", "--node", w.worker.Name); found.code != 2 ||
			!strings.Contains(found.stdout, run.ID) {
			t.Errorf("leftovers does not find what the node has: exit %d\n%s%s", found.code, found.stdout, found.stderr)
		}
		w.restoredByItself(t, before)
	})
	t.Run("deleted by another client", func(t *testing.T) {
		run := w.breaks("--mode", "missing-handler", "--ttl", "1m")
		w.forget(run.ID)
		w.restoredByItself(t, before)
	})
	t.Run("with an end in ten years", func(t *testing.T) {
		run := w.breaks("--mode", "missing-handler", "--ttl", "1m")
		w.rewrite(run.ID, func(run *ledger.Run) { run.Until = time.Now().Add(10 * 365 * 24 * time.Hour) })
		w.restoredByItself(t, before)
	})
}
