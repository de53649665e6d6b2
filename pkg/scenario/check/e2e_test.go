//go:build e2e && scenario

package check_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// Each source says what is so, and what is not, with the evidence; and a check that waits sees a change.
func TestE2EObjects(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.apply(pod("worker", "sleep 1000"))
	ref := &scenario.Ref{APIVersion: "v1", Kind: "Pod", Namespace: s.namespace, Name: "worker"}
	s.both(scenario.Check{Object: ref, Within: some}, `o.status.phase == "Running"`, `o.status.phase == "Failed"`,
		`o.status.phase = "Running"`, "Pod worker Running")
	s.both(scenario.Check{Object: &scenario.Ref{APIVersion: "v1", Kind: "Node", Name: "none"}}, `o == null`,
		`o.status.phase == "x"`, "does not exist")
	list := &scenario.Selector{APIVersion: "v1", Kind: "Pod", Namespace: s.namespace, Labels: "app=worker"}
	s.both(scenario.Check{Objects: list}, `list.size() == 1 && list.all(p, p.status.phase == "Running")`,
		`list.size() == p.replicas`, "1: Pod worker Running")
	s.both(scenario.Check{Objects: &scenario.Selector{APIVersion: "v1", Kind: "Node"}},
		`list.exists(n, n.metadata.name == "node-a")`,
		`list.all(n, has(n.spec.podCIDR) && n.metadata.name == "x")`, "node-a")
	s.expect(false,
		scenario.Check{Objects: &scenario.Selector{APIVersion: "nowhere.dev/v1", Kind: "Thing"}, Expect: "true"},
		"kind Thing in nowhere.dev/v1 does not exist")
	s.expect(true, scenario.Check{
		Object:    ref,
		Expect:    `o.status.phase == "Running" && now > timestamp("2020-01-01T00:00:00Z") && facts.gpusPerNode == 2`,
		Sustained: scenario.Duration(2 * time.Second),
	})
}

// A pod that restarts has logs of before and of now; a pod that waits for its first start has none, which proves
// nothing.
func TestE2ELogs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	// On a busy machine, the container runtime may lose what a container writes just before its end.
	s.crashesOnce("crasher", `echo start; echo CUDA error 719; sleep 0.5; exit 3`,
		`echo start; echo second; sleep 1000`)
	s.apply(strings.Replace(pod("absent", "true"), "image: ", "imagePullPolicy: Never\n    image: none.invalid/", 1))
	logs := &scenario.Logs{Namespace: s.namespace, Labels: "app=crasher"}
	s.both(scenario.Check{Logs: logs, Within: some}, `text.contains("second")`, `text.contains("third")`, "second")
	before := &scenario.Logs{Namespace: s.namespace, Pod: "crasher", Container: "main", Previous: true, Tail: 1}
	s.both(scenario.Check{Logs: before}, `text == "CUDA error 719"`, `text.contains("start")`, "CUDA error 719")
	s.expect(false,
		scenario.Check{Logs: &scenario.Logs{Namespace: s.namespace, Labels: "app=absent"}, Expect: `text == ""`},
		"no container has started", "pod absent")
	s.expect(false,
		scenario.Check{Logs: &scenario.Logs{Namespace: s.namespace, Labels: "app=other"}, Expect: `text == ""`},
		`no pod "app=other" found`)
}

// Events of both APIs have the same fields: the scheduler writes those of events.k8s.io, the kubelet those of core/v1.
func TestE2EEvents(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.apply(strings.Replace(pod("big", "true"), "limits: {cpu", "limits: {nvidia.com/gpu: 99, cpu", 1))
	s.apply(pod("small", "sleep 1000"))
	big := &scenario.Ref{APIVersion: "v1", Kind: "Pod", Namespace: s.namespace, Name: "big"}
	s.both(scenario.Check{Events: big, Within: some},
		`list.exists(e, e.reason == "FailedScheduling" && e.message.contains("nvidia.com/gpu") && timestamp(e.lastTimestamp) <= now && e.count >= 1)`,
		`list.exists(e, e.reason == "Started")`, "Insufficient nvidia.com/gpu")
	small := &scenario.Ref{APIVersion: "v1", Kind: "Pod", Namespace: s.namespace, Name: "small"}
	s.both(scenario.Check{Events: small, Within: some},
		`list[size(list) - 1].reason == "Started" && list[0].reason == "Scheduled"`, `list.size() == 0`, "Started")
}

// A command runs in the first ready pod; one that hangs ends with its time; and where no pod is ready, that is said.
func TestE2EExec(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.apply(pod("worker", "sleep 1000"))
	exec := &scenario.Exec{
		Namespace: s.namespace, Labels: "app=worker", Command: []string{"sh", "-c", "echo out; echo err >&2; exit 7"},
	}
	s.both(scenario.Check{Exec: exec, Within: some}, `code == 7 && stdout == "out\n" && stderr == "err\n"`, `code == 0`,
		"exit code 7: err")
	hangs := &scenario.Exec{
		Namespace: s.namespace, Pod: "worker", Command: []string{"sleep", "100"},
		Timeout: scenario.Duration(time.Second),
	}
	if r := s.expect(
		false, scenario.Check{Exec: hangs, Expect: "true"}, "the command timed out (1s)",
	); r.Took > 5*time.Second {
		t.Errorf("it took %s", r.Took)
	}
	s.apply(strings.Replace(pod("absent", "true"), "image: ", "imagePullPolicy: Never\n    image: none.invalid/", 1))
	s.expect(false, scenario.Check{
		Exec: &scenario.Exec{Namespace: s.namespace, Pod: "absent", Command: []string{"true"}}, Expect: "true",
	}, "no pod is ready")
	s.expect(false, scenario.Check{
		Exec: &scenario.Exec{Namespace: s.namespace, Pod: "worker", Command: []string{"nowhere"}}, Expect: "true",
	}, "nowhere")
}

const server = `mkdir -p /tmp/w; echo "up 1" >/tmp/w/metrics; httpd -f -h /tmp/w -p 8080`

// A URL is asked by a service's name through the API server and from a pod, which is gone afterwards; no answer is
// status 0, with the reason.
func TestE2EHTTP(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.apply(pod("web", server))
	for _, name := range []string{"web", "nobody"} {
		s.apply("apiVersion: v1\nkind: Service\nmetadata: {name: " + name + "}\nspec: {selector: {app: " + name +
			"}, ports: [{port: 80, targetPort: 8080}]}")
	}
	service := &scenario.HTTP{Namespace: s.namespace, Service: "web:80", Path: "/metrics"}
	s.both(scenario.Check{HTTP: service, Within: some}, `status == 200 && body == "up 1\n"`, `body.contains("up 0")`,
		"status 200: up 1")
	s.both(scenario.Check{HTTP: &scenario.HTTP{Namespace: s.namespace, Service: "web:80", Path: "/none"}},
		`status == 404 && body.contains("404")`, `status == 0`, "status 404")
	s.both(scenario.Check{HTTP: &scenario.HTTP{Namespace: s.namespace, Service: "nobody:80"}}, `status == 0`,
		`status == 200`, "no endpoints")
	s.both(scenario.Check{HTTP: &scenario.HTTP{Namespace: s.namespace, Service: "none:80"}}, `status == 0`,
		`status == 200`, `"none" not found`)

	url := "http://web." + s.namespace + ".svc"
	labels := scenario.Labels{"team": "a"}
	s.both(
		scenario.Check{
			HTTP: &scenario.HTTP{Namespace: s.namespace, URL: url + "/metrics", Labels: labels}, Within: some,
		},
		`status == 200 && body == "up 1\n"`, `status == 0`, "status 200: up 1",
	)
	s.expect(true, scenario.Check{
		HTTP: &scenario.HTTP{Namespace: s.namespace, URL: url + "/none"}, Within: some, Expect: `status == 404`,
	})
	s.both(scenario.Check{HTTP: &scenario.HTTP{Namespace: s.namespace, URL: "http://nobody." + s.namespace + ".svc"}},
		`status == 0`, `status == 200`)
	s.both(scenario.Check{HTTP: &scenario.HTTP{Namespace: s.namespace, URL: "http://none.invalid"}}, `status == 0`,
		`status == 200`, "none.invalid")
	s.onlyPods("web")
}

// Somebody's rights are those of the ServiceAccount with its groups.
func TestE2ECan(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.apply("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: runner}")
	s.apply("apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: runner}\nroleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}\n" +
		"subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: 'system:serviceaccounts:NS'}]")
	user := "system:serviceaccount:" + s.namespace + ":runner"
	jobs := &scenario.Can{User: user, Verb: "create", Group: "batch", Resource: "jobs", Namespace: s.namespace}
	s.both(scenario.Check{Can: jobs, Within: some}, `allowed && reason.contains("edit")`, `!allowed`, "yes",
		"ClusterRole")
	s.both(scenario.Check{
		Can: &scenario.Can{User: user, Verb: "create", Resource: "pods/exec", Namespace: s.namespace},
	},
		`allowed`, `!allowed`, "yes")
	s.both(scenario.Check{Can: &scenario.Can{User: user, Verb: "list", Resource: "nodes"}}, `!allowed`, `allowed`, "no")
}

func probePod(namespace, script string) scenario.Object {
	return scenario.Object{"metadata": map[string]any{"namespace": namespace, "name": "step"}, "spec": map[string]any{
		"containers": []any{map[string]any{"name": "main", "command": []any{"sh", "-c", script}}}}}
}

// A probe is judged when it has ended, runs, cannot be scheduled, or is refused, and is always deleted, also when the
// caller goes.
func TestE2EProbe(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ends := &scenario.Probe{Pod: probePod(s.namespace, "id -u; exit 4")}
	s.expect(true, scenario.Check{
		Probe: ends, Within: some,
		Expect: `o.status.phase == "Failed" && o.status.containerStatuses[0].state.terminated.exitCode == 4 && text == "65534" && list.exists(e, e.reason == "Started")`,
	})
	s.expect(false,
		scenario.Check{
			Probe: ends, Within: scenario.Duration(6 * time.Second), Expect: `o.status.phase == "Succeeded"`,
		},
		"Failed: Error (exit code 4): 65534")
	s.expect(true, scenario.Check{
		Probe: &scenario.Probe{Pod: probePod(s.namespace, "sleep 1000")}, Within: some,
		Expect: `o.status.phase == "Running"`, Sustained: scenario.Duration(2 * time.Second),
	})

	greedy := probePod(s.namespace, "true")
	greedy["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any)["resources"] = map[string]any{
		"limits": map[string]any{"nvidia.com/gpu": "99"},
	}
	s.both(scenario.Check{Probe: &scenario.Probe{Pod: greedy}, Within: some},
		`o.status.phase == "Pending" && list.exists(e, e.reason == "FailedScheduling")`,
		`o.status.phase == "Running"`, "Unschedulable", "nvidia.com/gpu")
	huge := probePod(s.namespace, "true")
	huge["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any)["resources"] = map[string]any{
		"limits": map[string]any{"cpu": "99", "memory": "1Gi"},
	}
	s.both(scenario.Check{Probe: &scenario.Probe{Pod: huge}, Within: some},
		`o == null && text.contains("exceeded quota")`, `o.status.phase == "Running"`, "exceeded quota")
	wrong := probePod(s.namespace, "true")
	wrong["spec"].(map[string]any)["imaginary"] = "x"
	s.expect(false,
		scenario.Check{Probe: &scenario.Probe{Pod: wrong}, Within: scenario.Duration(time.Second), Expect: "true"},
		"imaginary")
	s.onlyPods()
	events, err := s.Client.CoreV1().Events(s.namespace).List(t.Context(),
		metav1.ListOptions{FieldSelector: "reason=FailedScheduling"})
	if err != nil || len(events.Items) > 0 {
		t.Errorf("events are left: %v, %v", events.Items, err)
	}
}

// A caller who goes leaves no pod behind.
func TestE2ECancelled(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.apply(pod("web", server))
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the trainer has gone")
	s.Progress = func(text string) {
		if strings.Contains(text, "not yet: status 0") || strings.Contains(text, "not yet: no response") ||
			strings.Contains(text, "dial") {
			cancel(gone)
		}
	}
	never := scenario.Duration(10 * time.Minute)
	_, err := s.Checker.Run(ctx, []scenario.Check{
		{
			Name: "url", HTTP: &scenario.HTTP{Namespace: s.namespace, URL: "http://127.0.0.1:1/"}, Within: never,
			Expect: "status == 200",
		},
		{
			Name: "probe", Probe: &scenario.Probe{Pod: probePod(s.namespace, "sleep 1000")}, Within: never,
			Expect: `o.status.phase == "Failed"`,
		},
	})
	if !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
	s.onlyPods("web")
}
