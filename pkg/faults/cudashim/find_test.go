package cudashim

import (
	"strings"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
)

const pod = `kind: Pod, apiVersion: v1, spec: {containers: [{name: c, image: i}]}`

func owned(kind, api, name string) string {
	return `ownerReferences: [{apiVersion: ` + api + `, kind: ` + kind + `, name: ` + name + `, uid: uid-` + name +
		`, controller: true}]`
}

// From whatever the user names, the way leads up to the topmost owner that can be changed; what cannot carry the shim
// is refused with what to do instead.
func TestFind(t *testing.T) {
	t.Parallel()
	template := `spec: {template: {spec: {containers: [{name: c, image: i}]}}}`
	w := newWorld(t,
		web,
		`{kind: ReplicaSet, apiVersion: apps/v1, metadata: {name: web-1, namespace: team, `+
			owned("Deployment", "apps/v1", "web")+`}, `+template+`}`,
		`{`+pod+`, metadata: {name: web-1-a, namespace: team, `+owned("ReplicaSet", "apps/v1", "web-1")+`}}`,
		`{`+pod+`, metadata: {name: bare, namespace: team}}`,
		`{`+pod+`, metadata: {name: static, namespace: team, `+owned("Node", "v1", "n1")+`}}`,
		`{kind: Owner, apiVersion: example.org/v1, metadata: {name: top, namespace: team}, spec: {replicas: 1}}`,
		`{kind: Job, apiVersion: batch/v1, metadata: {name: made, namespace: team, `+
			owned("Owner", "example.org/v1", "top")+`}, `+template+`}`,
		`{`+pod+`, metadata: {name: direct, namespace: team, `+owned("Owner", "example.org/v1", "top")+`}}`,
		`{`+pod+`, metadata: {name: strange, namespace: team, `+owned("Unheard", "x.org/v1", "u")+`}}`,
		`{kind: CronJob, apiVersion: batch/v1, metadata: {name: nightly, namespace: team}, spec: {jobTemplate: {`+
			template+`}}}`,
		`{kind: Job, apiVersion: batch/v1, metadata: {name: nightly-1, namespace: team, `+
			owned("CronJob", "batch/v1", "nightly")+`}, `+template+`}`,
		`{kind: ReplicaSet, apiVersion: apps/v1, metadata: {name: orphan, namespace: team, `+
			owned("Deployment", "apps/v1", "gone")+`}, `+template+`}`,
		`{kind: ConfigMap, apiVersion: v1, metadata: {name: cm, namespace: team}}`,
		`{kind: StatefulSet, apiVersion: apps/v1, metadata: {name: going, namespace: team, deletionTimestamp: "2026-01-01T00:00:00Z"}, `+
			template+`}`,
		`{kind: DynamoGraphDeployment, apiVersion: nvidia.com/v1alpha1, metadata: {name: graph, namespace: team}, spec: {services: {A: {}}}}`,
		`{kind: Deployment, apiVersion: apps/v1, metadata: {name: graph-a, namespace: team, `+
			owned("DynamoGraphDeployment", "nvidia.com/v1alpha1", "graph")+`}, `+template+`}`,
	)
	for name, want := range map[string]string{
		"deployment/web":       "deployment.apps/web",
		"Deployments.apps/web": "deployment.apps/web",
		"pod/web-1-a":          "deployment.apps/web asked pod/web-1-a",
		"replicaset/web-1":     "deployment.apps/web asked replicaset.apps/web-1",
		"job/made":             "job.batch/made above owner.example.org/top",
		"job/nightly-1":        "cronjob.batch/nightly asked job.batch/nightly-1",
		"replicaset/orphan":    "replicaset.apps/orphan",
		"deployment/graph-a":   "dynamographdeployment.nvidia.com/graph asked deployment.apps/graph-a",
		"pod/bare":             "pod/bare is a pod without",
		"pod/static":           "pod/static is a static pod that node/n1",
		"pod/direct":           "pod/direct belongs to owner.example.org/top, which has no pod template",
		"pod/strange":          "its kind does not exist in the cluster",
		"configmap/cm":         "configmap/cm has no pod template (kind ConfigMap)",
		"statefulset/going":    "is being deleted",
		"deployment/wbe":       "did you mean web?",
		"statefulset/x":        "supported values: going",
		"widget/x":             `type "widget" not found`,
		"web":                  "must be TYPE/NAME",
		"deployment/":          "must be TYPE/NAME",
		"deployment/a/b":       "must be TYPE/NAME",
	} {
		found, err := w.cluster.Find(t.Context(), "team", name)
		got := ""
		switch {
		case err != nil:
			got = err.Error()
		default:
			got = found.Ref()
			if found.Asked != "" {
				got += " asked " + found.Asked
			}
			if found.Above != "" {
				got += " above " + found.Above
			}
		}
		if err == nil && got != want || err != nil && !strings.Contains(got, want) {
			t.Errorf("%s: %s, not %s", name, got, want)
		}
	}
	w.dynamic.PrependReactor("get", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil,
			apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, "web", nil)
	})
	if found, err := w.cluster.Find(t.Context(), "team", "pod/web-1-a"); err != nil ||
		found.Ref() != "replicaset.apps/web-1" || found.Above != "deployment.apps/web" {
		t.Errorf("an owner that may not be read: %v, %v", found, err)
	}
}

// Whoever manages a workload elsewhere is told of, with how to stop it for that time.
func TestManagers(t *testing.T) {
	t.Parallel()
	for metadata, want := range map[string]string{
		`annotations: {argocd.argoproj.io/tracking-id: "shop:apps/Deployment:team/web"}`: "Argo CD application shop:apps",
		`labels: {argocd.argoproj.io/instance: shop}`:                                    "Argo CD application shop",
		`managedFields: [{manager: argocd-controller, operation: Apply}]`:                "Argo CD,",
		`labels: {kustomize.toolkit.fluxcd.io/name: apps}`:                               "flux suspend kustomization apps",
		`labels: {helm.toolkit.fluxcd.io/name: apps}`:                                    "flux suspend helmrelease apps",
		`managedFields: [{manager: kustomize-controller, operation: Apply}]`:             "flux suspend kustomization NAME",
		`managedFields: [{manager: helm-controller, operation: Update}]`:                 "flux suspend helmrelease NAME",
		`managedFields: [{manager: kubectl, operation: Update}]`:                         "",
	} {
		w := workloadOf(parseYAML(t, `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, `+metadata+`}}`))
		if got := strings.Join(w.Managers(), "\n"); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q", metadata, got)
		}
	}
}

// When pods follow a change is what the user must know before.
func TestReplacement(t *testing.T) {
	t.Parallel()
	for object, want := range map[string]Replacement{
		`{apiVersion: apps/v1, kind: Deployment, spec: {}}`:                                     Rolling,
		`{apiVersion: apps/v1, kind: Deployment, spec: {paused: true}}`:                         Paused,
		`{apiVersion: apps/v1, kind: StatefulSet, spec: {updateStrategy: {type: OnDelete}}}`:    OnDelete,
		`{apiVersion: apps/v1, kind: DaemonSet, spec: {updateStrategy: {type: RollingUpdate}}}`: Rolling,
		`{apiVersion: apps/v1, kind: ReplicaSet, spec: {}}`:                                     OnDelete,
		`{apiVersion: batch/v1, kind: CronJob, spec: {}}`:                                       NextJob,
		`{apiVersion: batch/v1, kind: Job, spec: {}}`:                                           Recreate,
		`{apiVersion: ray.io/v1, kind: RayCluster, spec: {}}`:                                   OnDelete,
		`{apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, spec: {}}`:            Rolling,
		`{apiVersion: example.org/v1, kind: Deployment, spec: {paused: true}}`:                  Unknown,
	} {
		if got := workloadOf(parseYAML(t, object)).Replacement(); got != want {
			t.Errorf("%s: %s, not %s", object, got, want)
		}
	}
}

// What a user must know before a change is said before it, and a preview writes nothing.
func TestNotes(t *testing.T) {
	t.Parallel()
	w := newWorld(t,
		`{kind: CronJob, apiVersion: batch/v1, metadata: {name: nightly, namespace: team, labels: {argocd.argoproj.io/instance: shop}}, spec: {jobTemplate: {spec: {template: {spec: {containers: [
			{name: c, image: i, envFrom: [{secretRef: {name: keys}}, {configMapRef: {name: settings}}]}]}}}}}}`,
		`{kind: Job, apiVersion: batch/v1, metadata: {name: nightly-1, namespace: team, `+
			owned("CronJob", "batch/v1", "nightly")+`}, spec: {template: {spec: {containers: [{name: c, image: i}]}}}}`)
	hpa := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "scaler", Namespace: "team"}}
	hpa.Spec.ScaleTargetRef, hpa.Spec.MaxReplicas = autoscalingv2.CrossVersionObjectReference{
		Kind: "CronJob", Name: "nightly",
	}, 9
	if err := w.client.Tracker().Add(hpa); err != nil {
		t.Fatal(err)
	}
	preview, err := w.injection(w.find("job/nightly-1")).Preview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	said := strings.Join(preview.Notes, "\n")
	for _, part := range []string{
		"job.batch/nightly-1 belongs to cronjob.batch/nightly, which is changed", "applies to the next job",
		"Argo CD application shop",
		`container "c" reads variables from secret "keys"`, `from configMap "settings"`,
		"horizontalpodautoscaler/scaler scales cronjob.batch/nightly from 1 to 9 pods",
	} {
		if !strings.Contains(said, part) {
			t.Errorf("the notes lack %q:\n%s", part, said)
		}
	}
	if len(w.calls) > 0 || preview.Replaced != NextJob || len(preview.Changes) != 7 ||
		strings.Contains(strings.Join(preview.Changes, ""), previewRun) {
		t.Errorf("calls %v, %+v", w.calls, preview)
	}
}
