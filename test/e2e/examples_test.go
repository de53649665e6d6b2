//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
	"github.com/gpu-fault/kubectl-gpu-fault/test/typed"
)

// needs are what examples name that only a user has: files, runs, exercises, kinds and devices of other clusters, a
// kernel that loads modules.
var needs = []string{
	"7k3f9q", "x7k2mq", "evidence.tar.gz -o", "my-scenario.yaml", "my-agent", "anna.jsonl",
	"candidate.kubeconfig --kubeconfig-out", "age1...", "interviewers.key",
	"pytorchjob/", "--via kmod", "dmesg", "completion", "scenario hint", "scenario submit", "scenario grade",
	"scenario reveal", "scenario end",
	"scenario status", "scenario run", "scenario selftest", "--simulate-gpus", "--fix", "--group", "--user",
	"--terraform", "replay", "cuda status", "image ", "amd.com/gpu",
	"device taint", "pod/trainer-1", "run compare",
}

// A new user's first hour: every example of the help that needs nothing but a cluster, run as it stands on one, with
// the names of its nodes and --dry-run where the command has it. None may fail, and nothing is changed.
func TestExamplesRunOnACluster(t *testing.T) {
	e := setup(t)
	e.cluster.Addons(t) // the images of the scenarios
	namespace := e.cluster.Namespace(t)
	e.worker.RestartNPD(t) // it stops sending Events after 25 about a node
	e.workloadOfExamples(namespace)
	names := strings.NewReplacer("gpu-1", e.worker.Name, "gpu-2", e.control.Name, "worker-3", e.worker.Name, "gpu-7",
		e.worker.Name,
		"evidence.tar.gz", t.TempDir()+"/evidence.tar.gz", "report.html", t.TempDir()+"/report.html",
		"experiment.yaml", experimentFile(t, "", "- inject: {xid: 79}\n- expect: [{name: detected, within: 1m}]\n"),
		"deployment/trainer", "deployment/vllm")
	root := plugin.NewCommand(genericiooptions.NewTestIOStreamsDiscard())
	run := map[string]bool{}
	var visit func(*cobra.Command)
	visit = func(above *cobra.Command) {
		commands, err := typed.Commands(above.Example)
		if err != nil {
			t.Fatal(err)
		}
		for _, args := range commands {
			line := strings.Join(args, " ")
			if run[line] || slices.ContainsFunc(needs, func(part string) bool { return strings.Contains(line, part) }) {
				continue
			}
			run[line] = true
			cmd, _, err := root.Find(args)
			if err != nil {
				t.Fatal(err)
			}
			for i, arg := range args {
				args[i] = names.Replace(arg)
				if i > 0 && args[i-1] == "-n" {
					args[i] = namespace
				}
			}
			if !slices.Contains(args, "-n") {
				args = append(args, "-n", namespace)
			}
			// whose --dry-run is for what else they can do
			looks := slices.Contains([]string{"doctor", "leftovers", "revert"}, cmd.Name())
			switch {
			case cmd.Flags().Lookup("dry-run") != nil && !looks && !strings.Contains(line, "--dry-run"):
				args = append(args, "--dry-run=server")
			case strings.HasPrefix(line, "leftovers --nodes"):
				args = append(args, "--yes") // it only reads, and asks because of the pods
			}
			if cmd.Flags().Lookup("allow-last-gpu-node") != nil { // the cluster has only one other
				args = append(args, "--allow-last-gpu-node", "--allow-majority", "--allow-control-plane")
			}
			t.Run(line, func(t *testing.T) {
				r := e.plugin(args...)
				if verdict := r.code == 2 && (cmd.Name() == "doctor" || cmd.Name() == "leftovers"); r.code != 0 &&
					!verdict {
					t.Errorf("kubectl gpu-fault %s: exit %d\nstdout: %s\nstderr: %s", strings.Join(args, " "), r.code,
						r.stdout, r.stderr)
				}
			})
		}
		for _, sub := range above.Commands() {
			visit(sub)
		}
	}
	visit(root)
	if len(run) < 30 {
		t.Errorf("only %d examples were run", len(run))
	}
	e.untouched()
}

// workloadOfExamples makes what examples are about: the pod trainer-0, which holds a GPU, and the Deployment vllm. Each
// is on a node of its own: on one node they would hold all its GPUs, and some variants of the scenarios need a free one
// on both nodes.
func (e *env) workloadOfExamples(namespace string) {
	e.t.Helper()
	spec := func(node string) corev1.PodSpec {
		gpu := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
		return corev1.PodSpec{
			NodeSelector: map[string]string{corev1.LabelHostname: node},
			Containers: []corev1.Container{{
				Name: "main", Image: e.cluster.Trainer(e.t), ImagePullPolicy: corev1.PullNever,
				Resources: corev1.ResourceRequirements{Limits: gpu},
			}},
		}
	}
	pods, labels := e.cluster.Client.CoreV1().Pods(namespace), map[string]string{"app": "vllm"}
	if _, err := pods.Create(
		e.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "trainer-0"}, Spec: spec(e.control.Name)},
		metav1.CreateOptions{},
	); err != nil {
		e.t.Fatal(err)
	}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "vllm"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec(e.worker.Name)},
	}}
	if _, err := e.cluster.Client.AppsV1().Deployments(namespace).Create(
		e.t.Context(), deployment, metav1.CreateOptions{},
	); err != nil {
		e.t.Fatal(err)
	}
	cluster.Eventually(e.t, patience, "trainer-0 runs", func() (bool, string) {
		pod, err := pods.Get(e.t.Context(), "trainer-0", metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning, string(pod.Status.Phase)
	})
}
