package scheduler

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
)

// TestFixesChangeSomething verifies that the commands change the pod's owner, or else the pod itself, and contain the
// known values.
func TestFixesChangeSomething(t *testing.T) {
	t.Parallel()
	pod := func(kind, owner string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ml", Name: "p-1", Labels: map[string]string{"pod-template-hash": "abc"},
		}}
		p.Spec.Tolerations = []corev1.Toleration{
			{Key: "team", Operator: corev1.TolerationOpExists},
			{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists},
		}
		if kind != "" {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: owner, Controller: new(true)}}
		}
		return p
	}
	taint := corev1.Taint{Key: "dedicated", Value: "a;b", Effect: corev1.TaintEffectNoSchedule}
	for name, test := range map[string]struct{ got, want []string }{
		"a pod's wrong name": {renamed(pod("", ""), "nvidia.com/gpus", "nvidia.com/gpu"), []string{
			`kubectl -n ml get pod p-1 -o json | jq --arg from nvidia.com/gpus --arg to nvidia.com/gpu 'walk(if type == "object" and has($from) then .[$to] = .[$from] | del(.[$from]) else . end)' | kubectl replace --force -f -`,
		}},
		"an owner's wrong name": {renamed(pod("StatefulSet", "s"), "a", "b"), nil},
		"a Deployment": {
			facts.EditCommands(pod("ReplicaSet", "web-abc")), []string{"kubectl -n ml edit deployment web"},
		},
		"a Job": {facts.EditCommands(pod("Job", "j")), []string{
			"# the template of a Job is immutable: correct the manifest, then delete and recreate Job j in namespace " +
				"ml",
		}},
		"a Job of a JobSet": {facts.EditCommands(func() *corev1.Pod {
			p := pod("Job", "set-job-0")
			p.Labels["jobset.sigs.k8s.io/jobset-name"] = "set"
			return p
		}()), []string{
			"# the templates of a JobSet are immutable: correct the manifest of JobSet set in namespace ml, or the TrainJob or " +
				"command (such as xpk) that creates it; then delete and recreate the JobSet",
		}},
		"a toleration of a pod": {tolerate(pod("", ""), taint), []string{
			`kubectl -n ml patch pod p-1 --type json -p '[{"op":"add","path":"/spec/tolerations/-","value":{"key":"dedicated","operator":"Equal","value":"a;b","effect":"NoSchedule"}}]'`,
		}},
		"a toleration of a Job's pod": {tolerate(pod("Job", "j"), taint), []string{
			`kubectl -n ml patch pod p-1 --type json -p '[{"op":"add","path":"/spec/tolerations/-","value":{"key":"dedicated","operator":"Equal","value":"a;b","effect":"NoSchedule"}}]'`,
		}},
		"a toleration of an owner": {tolerate(pod("ReplicaSet", "web-abc"), taint), []string{
			`kubectl -n ml patch deployment web --type merge -p '{"spec":{"template":{"spec":{"tolerations":[{"key":"team","operator":"Exists"},{"key":"dedicated","operator":"Equal","value":"a;b","effect":"NoSchedule"}]}}}}'`,
		}},
	} {
		if strings.Join(test.got, "\n") != strings.Join(test.want, "\n") {
			t.Errorf("%s: %q, want %q", name, test.got, test.want)
		}
	}
}
