package experiment_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
)

// file is an experiment: the node must be cordoned within ten seconds, and no pod may fail.
const file = `
apiVersion: gpufault.dev/v1alpha1
kind: Experiment
metadata: {name: xid79-cordons}
target: {selector: nvidia.com/gpu.present=true}
steps:
- inject: {xid: 79, gpu: 0}
- expect:
  - {name: cordoned, by: my-remediator, within: 10s}
- expect-not:
  - {name: pod-failed, for: 10ms}
`

// Parse an experiment, find its nodes, play it, and read the verdicts. The cluster of this example is a fake one, in
// which a remediator cordons the node as soon as the fault is injected; the next example uses a real cluster.
func Example() {
	ctx := context.Background()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "gpu-1", Labels: map[string]string{"nvidia.com/gpu.present": "true"},
	}}
	client := fake.NewClientset(node)

	e, err := experiment.Parse("experiment.yaml", []byte(file))
	if err != nil {
		log.Fatal(err) // with the line and the column of each problem
	}
	targets, err := e.Target.Nodes(ctx, client, nil)
	if err != nil {
		log.Fatal(err)
	}
	lab := &experiment.Lab{
		Client: client,
		Command: func(ctx context.Context, line []string) (string, error) {
			fmt.Println("inject:", strings.Join(line, " "))
			return "xid-7k3f9q", cordon(ctx, client, "gpu-1")
		},
		Revert: func(_ context.Context, run string) error {
			fmt.Println("revert:", run)
			return nil
		},
	}
	result, err := lab.Play(ctx, e, targets)
	if err != nil {
		log.Fatal(err) // the experiment could not be carried out
	}
	for _, v := range result.Verdicts {
		fmt.Printf("%s: %s, by %q\n", v.Name, v.State, v.By)
	}
	fmt.Println("passed:", result.Passed)
	// Output:
	// inject: xid 79 gpu-1 --gpu 0
	// revert: xid-7k3f9q
	// cordoned: ok, by "my-remediator"
	// pod-failed: ok, by ""
	// passed: true
}

// cordon cordons a node, as the remediator of the example.
func cordon(ctx context.Context, client kubernetes.Interface, name string) error {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	node.Spec.Unschedulable = true
	_, err = client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{FieldManager: "my-remediator"})
	return err
}

// Play a built-in experiment on a real cluster. The faults are injected by the plugin, which must be in PATH: it checks
// the limits of the blast radius, records the undo, and verifies the fault.
func ExampleLab_Play() {
	ctx := context.Background()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		log.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	e, err := experiment.Named("gsp-119")
	if err != nil {
		log.Fatal(err)
	}
	plugin := func(ctx context.Context, args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, "kubectl-gpu_fault", args...)
		cmd.Stderr = os.Stderr
		// Let the plugin clean up when the context is canceled.
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	lab := &experiment.Lab{
		Client: client,
		Command: func(ctx context.Context, line []string) (string, error) {
			run, err := plugin(ctx, append(line, "--yes", "-o", "name")...)
			return strings.TrimPrefix(run, "run/"), err
		},
		Revert: func(ctx context.Context, run string) error {
			_, err := plugin(ctx, "revert", run, "--yes")
			return err
		},
	}
	result, err := lab.Play(ctx, e, []string{"gpu-1"})
	if err != nil {
		log.Fatal(err)
	}
	for _, v := range result.Verdicts {
		fmt.Printf("%s: %s after %.1f s\n", v.Name, v.State, v.After)
	}
	if len(result.LeftBehind) > 0 {
		log.Fatal("not reverted: ", result.LeftBehind)
	}
}
