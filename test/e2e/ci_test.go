//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
	"github.com/gpu-fault/kubectl-gpu-fault/test/typed"
)

// canary is the example of a canary, applied under names of the test's own.
type canary struct {
	*env
	namespace string // and the name of its roles and its label
	text      string
}

const canaryImage = "docker.io/library/gpu-fault-canary:e2e"

// newCanary applies the example, for the test's ledger and an image on the nodes. The cluster has one GPU node, so the
// limit for the last one is lifted.
func newCanary(t *testing.T) *canary {
	t.Helper()
	e := setup(t)
	data, err := os.ReadFile("../../docs/examples/canary.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c := &canary{env: e, namespace: strings.Replace(e.ledger, "ledger-testcanary", "canary-", 1)}
	c.text = strings.NewReplacer(
		"gpu-fault-canary", c.namespace,
		"namespace: gpu-fault}", "namespace: "+e.ledger+"}",
		"name: gpu-fault\n", "name: "+e.ledger+"\n",
		"--ledger-namespace=gpu-fault]", "--ledger-namespace="+e.ledger+", --allow-last-gpu-node]",
		"registry.example.com/tools/kubectl-gpu-fault:v0.1.0", canaryImage,
	).Replace(string(data))
	if strings.Count(c.text, e.ledger+", --allow") != 1 || strings.Count(c.text, canaryImage) != 1 {
		t.Fatalf("the example has changed:\n%s", c.text)
	}
	namespaces := strings.Split(c.text, "\n---\n")
	c.kubectlWith(namespaces[0]+"\n---\n"+namespaces[2], "apply", "-f", "-")
	t.Cleanup(func() { c.kubectlWith(c.text, "delete", "--ignore-not-found", "-f", "-") })
	c.noWarning("apply", "--dry-run=server", "-f", "-")
	c.noWarning("apply", "-f", "-")
	e.worker.RestartNPD(t) // it stops sending Events after 25 about a node
	c.kubectlWith("", "label", "node", e.worker.Name, c.namespace+"=true")
	t.Cleanup(func() { c.kubectlWith("", "label", "node", e.worker.Name, c.namespace+"-") })
	c.inForce(c.user(), fault.Permission{Verb: "create", Resource: "pods", Namespace: e.ledger})
	c.inForce(c.user(), fault.Permission{Verb: "watch", Resource: "nodes"})
	return c
}

func (c *canary) user() string { return "system:serviceaccount:" + c.namespace + ":canary" }

// noWarning runs kubectl with the file. The API server must not warn, as it does about a pod that Pod Security would
// refuse.
func (c *canary) noWarning(args ...string) {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), binary(c.t, "kubectl"),
		append([]string{"--kubeconfig", c.cluster.Kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(c.text)
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "Warning") {
		c.t.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
}

// run runs the canary's experiment as its service account.
func (c *canary) run() result {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "experiment.yaml")
	text := c.kubectl("get", "configmap", "-n", c.namespace, "canary", "-o", `jsonpath={.data.experiment\.yaml}`)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return c.plugin("run", "-f", file, "--yes", "--allow-last-gpu-node", "-o", "json", "--as", c.user())
}

// The canary's service account can run its experiment with its roles, and nothing it needs can be taken away: without
// one right, nothing is injected, and the error names the right.
func TestCanaryRights(t *testing.T) {
	c := newCanary(t)
	r := c.run()
	var got experiment.Result
	c.decode(r.stdout, &got)
	if r.code != 0 || !got.Passed || len(got.Verdicts) != 2 {
		t.Fatalf("exit %d\n%s\n%s", r.code, r.stderr, r.stdout)
	}
	runs := len(c.runs("--all"))
	for _, missing := range []fault.Permission{
		{Verb: "create", Resource: "pods/exec", Namespace: c.ledger},
		{Verb: "update", Group: "coordination.k8s.io", Resource: "leases", Namespace: c.ledger},
		{Verb: "update", Resource: "configmaps", Namespace: c.ledger},
		{Verb: "watch", Resource: "pods"},
	} {
		c.without(missing, func() {
			r := c.run()
			if said := "you are not allowed to " + missing.String(); r.code != 1 || !strings.Contains(r.stderr, said) ||
				!strings.Contains(r.stderr, "nothing was changed") {
				t.Errorf("without %s: exit %d\n%s", missing, r.code, r.stderr)
			}
		})
	}
	if now := len(c.runs("--all")); now != runs {
		t.Errorf("%d runs, %d before: something was not refused", now, runs)
	}
	c.noPods()
}

// without takes a right from the canary's roles while a function runs.
func (c *canary) without(missing fault.Permission, do func()) {
	c.t.Helper()
	var restore []func()
	for _, role := range []string{c.namespace + "-xid", c.namespace + "-watch"} {
		rules, set := c.rules(role, missing.Namespace)
		set(withoutRule(rules, missing))
		restore = append(restore, func() { set(rules) })
	}
	cluster.Eventually(c.t, patience, c.user()+" may not "+missing.String(), func() (bool, string) {
		return !c.may(c.user(), missing, missing.Namespace), "not yet"
	})
	do()
	for _, one := range restore {
		one()
	}
	c.inForce(c.user(), missing)
}

// rules returns the rules of a Role, or of a ClusterRole if the namespace is empty, and a function that replaces them.
func (c *canary) rules(role, namespace string) (rules []rbacv1.PolicyRule, set func([]rbacv1.PolicyRule)) {
	c.t.Helper()
	client, ctx := c.cluster.Client.RbacV1(), c.t.Context()
	check := func(err error) {
		c.t.Helper()
		if err != nil {
			c.t.Fatal(err)
		}
	}
	if namespace == "" {
		o, err := client.ClusterRoles().Get(ctx, role, metav1.GetOptions{})
		check(err)
		return o.DeepCopy().Rules, func(rules []rbacv1.PolicyRule) {
			o.Rules, o.ResourceVersion = rules, ""
			_, err := client.ClusterRoles().Update(ctx, o, metav1.UpdateOptions{})
			check(err)
		}
	}
	o, err := client.Roles(namespace).Get(ctx, role, metav1.GetOptions{})
	check(err)
	return o.DeepCopy().Rules, func(rules []rbacv1.PolicyRule) {
		o.Rules, o.ResourceVersion = rules, ""
		_, err := client.Roles(namespace).Update(ctx, o, metav1.UpdateOptions{})
		check(err)
	}
}

// withoutRule returns rules without the verb of a permission on its resource.
func withoutRule(rules []rbacv1.PolicyRule, missing fault.Permission) (kept []rbacv1.PolicyRule) {
	for _, rule := range rules {
		if !slices.Contains(rule.Resources, missing.Resource) || !slices.Contains(rule.APIGroups, missing.Group) {
			kept = append(kept, rule)
			continue
		}
		others, same := rule.DeepCopy(), rule.DeepCopy()
		others.Resources = slices.DeleteFunc(others.Resources, func(r string) bool { return r == missing.Resource })
		same.Resources = []string{missing.Resource}
		same.Verbs = slices.DeleteFunc(same.Verbs, func(v string) bool { return v == missing.Verb })
		for _, r := range []*rbacv1.PolicyRule{others, same} {
			if len(r.Resources) > 0 && len(r.Verbs) > 0 {
				kept = append(kept, *r)
			}
		}
	}
	return kept
}

// The canary as users run it: Jobs of the CronJob, in pods with an image of the plugin alone and the rights of the
// service account. The exit code and the end of the log can be read, and a canary that fails is not repeated.
func TestCanaryRunsInTheCluster(t *testing.T) {
	c := newCanary(t)
	c.loadImage()
	job, said := c.job("first")
	if job.Status.Succeeded != 1 || !strings.Contains(said, "detected") || !strings.Contains(said, "passed: 2") {
		t.Errorf("%+v\n%s", job.Status, said)
	}
	if state := c.terminated("first"); state.ExitCode != 0 {
		t.Errorf("%+v", state)
	}
	if runs := c.runs("--all"); len(runs) != 1 || runs[0].By != c.user() {
		t.Errorf("the ledger has %+v", runs)
	}
	failing := strings.Replace(c.text, "{name: detected, within: 2m}", "{name: rebooted, within: 1s}", 1)
	c.kubectlWith(failing, "apply", "-f", "-")
	job, said = c.job("second")
	state := c.terminated("second")
	told := strings.Contains(state.Message, "FAILED: 1 of 2")
	if job.Status.Failed != 1 || state.ExitCode != 2 || !told {
		t.Errorf("%+v\n%+v\n%s", job.Status, state, said)
	}
	if open := c.runs(); len(open) > 0 {
		t.Errorf("open runs: %+v", open)
	}
	c.noPods()
}

// job runs the canary once, and returns the Job and its log.
func (c *canary) job(name string) (job *batchv1.Job, log string) {
	c.t.Helper()
	c.kubectlWith("", "create", "job", "-n", c.namespace, "--from=cronjob/canary", name)
	jobs := c.cluster.Client.BatchV1().Jobs(c.namespace)
	cluster.Eventually(c.t, 3*patience, "job "+name+" has ended", func() (bool, string) {
		var err error
		job, err = jobs.Get(c.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return job.Status.Succeeded+job.Status.Failed > 0, fmt.Sprintf("%+v", job.Status)
	})
	return job, c.kubectl("logs", "-n", c.namespace, "job/"+name)
}

// terminated returns how the only pod of a Job ended.
func (c *canary) terminated(job string) *corev1.ContainerStateTerminated {
	c.t.Helper()
	pods, err := c.cluster.Client.CoreV1().Pods(c.namespace).List(c.t.Context(),
		metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + job})
	if err != nil || len(pods.Items) != 1 || pods.Items[0].Status.ContainerStatuses[0].State.Terminated == nil {
		c.t.Fatalf("%v, %+v", err, pods)
	}
	return pods.Items[0].Status.ContainerStatuses[0].State.Terminated
}

// loadImage builds the image as the Dockerfile in the example does, and loads it into the nodes.
func (c *canary) loadImage() {
	c.t.Helper()
	program, err := os.ReadFile(binary(c.t, "kubectl-gpu_fault"))
	if err != nil {
		c.t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(tarOf(c.t, program))), nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err == nil {
		image, err = mutate.ConfigFile(image, configOf(c.t, image))
	}
	if err != nil {
		c.t.Fatal(err)
	}
	tag, err := name.NewTag(canaryImage)
	if err != nil {
		c.t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := tarball.Write(tag, image, &archive); err != nil {
		c.t.Fatal(err)
	}
	for _, node := range c.cluster.Nodes() {
		load := node.Command(c.t.Context(), "ctr", "-n", "k8s.io", "images", "import", "-")
		load.Stdin = bytes.NewReader(archive.Bytes())
		if out, err := load.CombinedOutput(); err != nil {
			c.t.Fatalf("%s: %v\n%s", node.Name, err, out)
		}
		c.t.Cleanup(func() {
			_ = node.Command(context.Background(), "ctr", "-n", "k8s.io", "images", "rm", canaryImage).Run()
		})
	}
}

// configOf returns the configuration of an image that starts the plugin as a user without rights.
func configOf(t *testing.T, image v1.Image) *v1.ConfigFile {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	config.Config.User, config.Config.Entrypoint = "65532", []string{"/kubectl-gpu_fault"}
	return config
}

// tarOf returns an archive with the plugin.
func tarOf(t *testing.T, program []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	archive := tar.NewWriter(&out)
	header := &tar.Header{Typeflag: tar.TypeReg, Name: "kubectl-gpu_fault", Mode: 0o755, Size: int64(len(program))}
	if err := archive.WriteHeader(header); err != nil {
		t.Fatal(err)
	}
	if _, err := archive.Write(program); err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func gzipped(t *testing.T, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	zipped, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := zipped.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// The action's script, with a release of the plugin as it was built: it installs it, runs an experiment on the cluster,
// and leaves the reports, the outputs and the summary.
func TestActionOnACluster(t *testing.T) {
	e := setup(t)
	program, err := os.ReadFile(binary(t, "kubectl-gpu_fault"))
	if err != nil {
		t.Fatal(err)
	}
	e.worker.RestartNPD(t) // as for the canary
	const version = "v9.8.7"
	dir := t.TempDir()
	release := filepath.Join(dir, "releases", version)
	packed := gzipped(t, tarOf(t, program))
	archive := "kubectl-gpu_fault_" + version + "_linux_amd64.tar.gz"
	sums := fmt.Sprintf("%x  %s\n", sha256.Sum256(packed), archive)
	if err := os.MkdirAll(release, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string][]byte{archive: packed, "checksums.txt": []byte(sums)} {
		if err := os.WriteFile(filepath.Join(release, file), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	script, err := filepath.Abs("../../.github/actions/experiment/experiment")
	if err != nil {
		t.Fatal(err)
	}
	file := experimentFile(t, "", "- inject: {xid: 43}\n- expect: [{name: detected, within: 1m}]\n"+
		"- expect-not: [{name: cordoned, for: 1s}]\n")
	cmd := exec.CommandContext(t.Context(), script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "RELEASES=file://"+filepath.Join(dir, "releases"), "VERSION="+version,
		"RUNNER_OS=Linux", "RUNNER_ARCH=X64", "RUNNER_TEMP="+t.TempDir(),
		"GITHUB_OUTPUT="+filepath.Join(dir, "outputs"), "GITHUB_STEP_SUMMARY="+filepath.Join(dir, "summary"),
		"FILE="+file, "NODE="+e.worker.Name,
		"ARGS=--allow-last-gpu-node", "KUBECONFIG="+e.cluster.Kubeconfig,
		"KUBECTL_GPU_FAULT_LEDGER_NAMESPACE="+e.ledger)
	said, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	for file, part := range map[string]string{
		"outputs": "passed=true\nexit-code=0\nreport=gpu-fault.html\n", "summary": "| detected | ok |",
		"gpu-fault.xml": `tests="3" failures="0" errors="0"`, "gpu-fault.html": "Passed: test",
		"gpu-fault.json": `"passed": true`,
	} {
		if text, err := os.ReadFile(filepath.Join(dir, file)); err != nil || !strings.Contains(string(text), part) {
			t.Errorf("%s lacks %q: %v\n%s", file, part, err, text)
		}
	}
	if open := e.runs(); len(open) > 0 {
		t.Errorf("open runs: %+v", open)
	}
	e.noPods()
}

// Every command of the page for Python runs on a cluster, in the order of the page, and prints JSON. The experiments
// are only planned: one takes as long as a remediator, which the cluster does not have.
func TestPythonPage(t *testing.T) {
	c := setupCUDA(t)
	page, err := os.ReadFile("../../docs/guides/python.md")
	if err != nil {
		t.Fatal(err)
	}
	c.worker.RestartNPD(t)                                                // as for the canary
	t.Cleanup(func() { c.worker.RestartNPD(t); c.control.RestartNPD(t) }) // the pod may be on either node
	vllm := c.deployment("vllm")
	vllm.Spec.Template.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": quantity("1")}
	get := c.create(vllm)
	c.healthy("vllm", 1)
	before := asUserSees(t, get())
	id, lines := "", typed.InTables(string(page))
	for _, line := range lines {
		args := strings.Fields(strings.NewReplacer("worker-node-1", c.worker.Name, "RUN", id, "-n dynamo ",
			"-n "+c.namespace+" ").Replace(line))[2:]
		switch args[0] {
		case "xid":
			args = append(args, "--allow-last-gpu-node", "--allow-majority", "--allow-control-plane")
		case "run":
			args = append(args, "--dry-run=client", "--allow-last-gpu-node")
		}
		r := c.plugin(args...)
		isVerdict := r.code == 2 && args[0] == "leftovers" // of other tests
		if r.code != 0 && !isVerdict {
			t.Fatalf("%s: exit %d\n%s\n%s", line, r.code, r.stdout, r.stderr)
		}
		if args[0] == "run" {
			continue
		}
		var printed struct {
			ID   string   `json:"id"`
			Runs []string `json:"runs"` // with --expect
		}
		if err := json.Unmarshal([]byte(r.stdout), &printed); err != nil {
			t.Errorf("%s: stdout is not JSON: %v\n%s", line, err, r.stdout)
		}
		if args[0] == "xid" || args[0] == "cuda" && args[1] == "inject" {
			if id = printed.ID; id == "" && len(printed.Runs) == 1 {
				id = printed.Runs[0]
			}
			if id == "" {
				t.Fatalf("%s: no id in\n%s", line, r.stdout)
			}
		}
	}
	if len(lines) < 12 {
		t.Errorf("only %d commands were run", len(lines))
	}
	cluster.Eventually(t, patience, "the workload is as before", func() (bool, string) {
		now := asUserSees(t, get())
		return now == before, difference(before, now)
	})
	if open := c.runs(); len(open) > 0 {
		t.Errorf("open runs: %+v", open)
	}
	c.nothingLeft()
}
