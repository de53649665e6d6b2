//go:build e2e && scenario

// These tests need a real cluster, by KUBECONFIG, as its administrator, whose nodes have
// docker.io/library/busybox:1.35, and the kubectl of the test cluster, or of PATH. They work in namespaces of their
// own.
package recorder_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/access"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/recorder"
)

type transcript struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (b *transcript) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *transcript) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}

// desk is a candidate's: a namespace with a pod, and kubectl through the recorder.
type desk struct {
	*testing.T
	kubectl, kubeconfig, namespace string
	out                            *transcript
	token                          string
	admin                          kubernetes.Interface
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 100, 200
	d := &desk{
		T: t, admin: kubernetes.NewForConfigOrDie(config), namespace: fmt.Sprintf("rec-%x", time.Now().UnixNano()),
		out: &transcript{},
	}
	if d.kubectl, err = filepath.Abs("../../../bin/kubectl"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(d.kubectl); err != nil {
		d.kubectl = "kubectl"
	}
	ctx := context.Background()
	if _, err := d.admin.CoreV1().Namespaces().Create(
		ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: d.namespace}}, metav1.CreateOptions{},
	); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.admin.CoreV1().Namespaces().Delete(ctx, d.namespace, metav1.DeleteOptions{}) })
	a := scenario.Access{Namespaces: []string{d.namespace}}
	objects := dynamic.NewForConfigOrDie(config)
	for _, o := range access.Objects(d.namespace, "ledger", a) {
		resource := o.GroupVersionKind().GroupVersion().WithResource(strings.ToLower(o.GetKind()) + "s")
		client := dynamic.ResourceInterface(objects.Resource(resource))
		if o.GetNamespace() != "" {
			client = objects.Resource(resource).Namespace(o.GetNamespace())
		}
		if _, err := client.Create(ctx, o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Delete(ctx, o.GetName(), metav1.DeleteOptions{}) })
	}
	issued, err := access.Kubeconfig(ctx, d.admin, config, d.namespace, a, time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	candidate, err := clientcmd.RESTConfigFromKubeConfig(issued.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	d.token = candidate.BearerToken
	d.serve(issued.Kubeconfig)
	d.run("apply", "-f", "-")
	d.run("wait", "--for=condition=Ready", "pod/web-0", "--timeout=60s")
	return d
}

func (d *desk) serve(kubeconfig []byte) {
	d.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		d.Fatal(err)
	}
	proxy, err := recorder.New(config, d.namespace, d.out)
	if err != nil {
		d.Fatal(err)
	}
	listener, err := recorder.Listen()
	if err != nil {
		d.Fatal(err)
	}
	text, err := proxy.Kubeconfig(listener.Addr())
	if err != nil {
		d.Fatal(err)
	}
	d.kubeconfig = filepath.Join(d.TempDir(), "kubeconfig")
	if err := os.WriteFile(d.kubeconfig, text, 0o600); err != nil {
		d.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- proxy.Serve(ctx, listener) }()
	d.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			d.Error(err)
		}
	})
}

const manifest = `
apiVersion: v1
kind: Pod
metadata: {name: web-0, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: docker.io/library/busybox:1.35
    command: [sh, -c, "mkdir /tmp/w; echo hello >/tmp/w/index.html; (while sleep 0.3; do echo tick; done)& httpd -f -p 8080 -h /tmp/w"]
---
apiVersion: v1
kind: Secret
metadata: {name: password}
stringData: {password: hunter2-hunter2}
`

func (d *desk) command(environment []string, args ...string) *exec.Cmd {
	d.Helper()
	command := exec.CommandContext(d.Context(), d.kubectl, args...)
	command.Env = append(os.Environ(), append(environment, "KUBECONFIG="+d.kubeconfig, "HOME="+d.TempDir())...)
	command.Stdin = strings.NewReader(manifest)
	return command
}

// run returns a kubectl that must succeed.
func (d *desk) run(args ...string) string {
	d.Helper()
	out, err := d.command(nil, args...).CombinedOutput()
	if err != nil {
		d.Fatalf("kubectl %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// firstLine starts a kubectl that goes on, waits for a line with the text, and ends it.
func (d *desk) firstLine(environment []string, text string, args ...string) {
	d.Helper()
	command := d.command(environment, args...)
	out, err := command.StdoutPipe()
	if err != nil {
		d.Fatal(err)
	}
	if err := command.Start(); err != nil {
		d.Fatal(err)
	}
	stop := time.AfterFunc(30*time.Second, func() { _ = command.Process.Kill() })
	defer stop.Stop()
	found := false
	for lines := bufio.NewScanner(out); !found && lines.Scan(); {
		found = strings.Contains(lines.Text(), text)
	}
	_ = command.Process.Kill()
	_ = command.Wait()
	if !found {
		d.Errorf("kubectl %q did not say %q", args, text)
	}
}

// All that kubectl does works through the recorder, by both protocols, and is in the transcript; no secret is.
func TestE2EKubectlThroughTheRecorder(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.run("get", "pods")
	d.run("describe", "pod", "web-0")
	if got := d.run("get", "secret", "password", "-o", "yaml"); !strings.Contains(got, "password:") {
		t.Errorf("%s", got)
	}
	d.run("create", "token", "default")
	d.run("create", "configmap", "made", "--from-literal=a=b")
	d.run("label", "pod", "web-0", "team=a")
	d.firstLine(nil, "web-0", "get", "pods", "--watch")
	d.firstLine(nil, "tick", "logs", "-f", "web-0")
	for name, environment := range map[string][]string{
		"WebSocket": {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=true", "KUBECTL_PORT_FORWARD_WEBSOCKETS=true"},
		"SPDY":      {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false", "KUBECTL_PORT_FORWARD_WEBSOCKETS=false"},
	} {
		command := d.command(environment, "exec", "-i", "web-0", "--", "sh", "-c", "echo in; cat; echo err >&2; exit 7")
		command.Stdin = strings.NewReader(strings.Repeat("stdin\n", 20_000))
		var out, problems bytes.Buffer
		command.Stdout, command.Stderr = &out, &problems
		err := command.Run()
		if command.ProcessState.ExitCode() != 7 || out.String() != "in\n"+strings.Repeat("stdin\n", 20_000) ||
			!strings.HasPrefix(problems.String(), "err\n") {
			t.Errorf("%s: exec: %v, %d bytes, %q", name, err, out.Len(), problems.String())
		}
		d.firstLine(environment, "tick", "attach", "web-0")
		d.forward(name, environment)
	}
	// Not allowed is not allowed through it.
	if out, err := d.command(nil, "get", "secrets", "-n", "kube-system").CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "Forbidden") {
		t.Errorf("%v %s", err, out)
	}
	const header = `{"apiVersion":"gpufault.dev/v1alpha1","kind":"Transcript","user":"candidate","began":"2026-01-01T00:00:00Z"}` +
		"\n"
	read, err := recorder.Read(strings.NewReader(header + d.out.String()))
	if err != nil {
		t.Fatal(err)
	}
	lines := read.Lines
	seen := map[string]int{}
	for _, l := range lines {
		seen[strings.TrimSpace(fmt.Sprintf("%s %s/%s %s %d", l.Verb, l.Resource, l.Name, l.Subresource, l.Status))]++
	}
	for _, want := range []string{
		"create pods/web-0  201", "get pods/web-0  200", "list pods/  200", "watch pods/  200",
		"get secrets/password  200", "create configmaps/made  201", "patch pods/web-0  200",
		"create serviceaccounts/default token 201", "get pods/web-0 log 200", "list secrets/  403",
		"get pods/web-0 exec 101", "create pods/web-0 exec 101", "get pods/web-0 attach 101",
		"create pods/web-0 attach 101", "get pods/web-0 portforward 101", "create pods/web-0 portforward 101",
	} {
		if seen[want] == 0 {
			t.Errorf("not in the transcript: %q", want)
		}
	}
	if t.Failed() {
		t.Logf("%v", seen)
	}
	for _, secret := range []string{"hunter2", "aHVudGVyMi", d.token, "eyJ", "Bearer", "stdin"} {
		if strings.Contains(d.out.String(), secret) {
			t.Errorf("%q is in the transcript", secret)
		}
	}
	if first := recorder.FirstRelevant(
		lines, scenario.RootCause{Object: scenario.Answer{Value: "Pod/web-0"}},
	); first.IsZero() {
		t.Error("nobody looked at the pod")
	}
	summary := recorder.Summarize(lines)
	if summary.Changes < 4 || summary.Refused != 1 || len(summary.Objects) == 0 ||
		!strings.HasSuffix(summary.Objects[0].Object, "/web-0") {
		t.Errorf("%+v", summary)
	}
}

// forward asks the pod's server through kubectl's tunnel.
func (d *desk) forward(name string, environment []string) {
	d.Helper()
	command := d.command(environment, "port-forward", "pod/web-0", ":8080")
	out, err := command.StdoutPipe()
	if err != nil {
		d.Fatal(err)
	}
	if err := command.Start(); err != nil {
		d.Fatal(err)
	}
	defer func() { _ = command.Process.Kill(); _ = command.Wait() }()
	line, err := bufio.NewReader(out).ReadString('\n') // Forwarding from 127.0.0.1:36087 -> 8080
	fields := strings.Fields(line)
	if err != nil || len(fields) < 3 {
		d.Fatalf("%s: port-forward: %q, %v", name, line, err)
	}
	for range 3 {
		response, err := http.Get("http://" + fields[2])
		if err != nil {
			d.Fatalf("%s: through the tunnel: %v", name, err)
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || string(body) != "hello\n" {
			d.Errorf("%s: through the tunnel: %q, %v", name, body, err)
		}
	}
}
