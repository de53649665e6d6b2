//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// The nodes share the machine's kernel log, in which older tests have left XIDs: doctor is asked about the time since a
// test began.
type patient struct {
	*env
	began time.Time
}

func newPatient(t *testing.T) *patient {
	t.Helper()
	p := &patient{env: setup(t), began: time.Now()}
	p.worker.RestartNPD(t) // forgets the XIDs of older tests
	p.control.RestartNPD(t)
	return p
}

func (p *patient) since() string {
	return (time.Since(p.began).Round(time.Second) + time.Second).String()
}

// ask runs doctor, on the worker unless the arguments say otherwise, and returns its report. Finding something is no
// failure.
func (p *patient) ask(args ...string) doctor.Report {
	p.t.Helper()
	command := []string{"doctor", "--since", p.since(), "-o", "json"}
	if !slices.Contains(args, "--api-only") && !slices.Contains(args, "--all-gpu-nodes") {
		command = append(command, "--node", p.worker.Name)
	}
	r := p.plugin(append(command, args...)...)
	if r.code != 0 && r.code != 2 {
		p.t.Fatalf("doctor: exit %d\n%s", r.code, r.stderr)
	}
	var report doctor.Report
	p.decode(r.stdout, &report)
	if wanted := map[bool]int{true: 2, false: 0}[report.Summary.Errors > 0]; r.code != wanted {
		p.t.Errorf("doctor: exit %d with %d errors", r.code, report.Summary.Errors)
	}
	report.Items = p.own(report.Items)
	return report
}

// own returns the findings without those of other clusters.
func (p *patient) own(items []finding.Finding) []finding.Finding {
	return slices.DeleteFunc(items, func(f finding.Finding) bool { return p.foreign(f.Object.Name) })
}

// pciDomain finds the PCI domain in the name of a device, as in node-a/0000:17:00.
var pciDomain = regexp.MustCompile(`/([0-9a-f]{4}):[0-9a-f]{2}:[0-9a-f]{2}`)

// foreign reports whether a name is that of a device of another cluster: all clusters of a machine share its kernel
// log.
func (p *patient) foreign(name string) bool {
	domain := pciDomain.FindStringSubmatch(name)
	return domain != nil && !strings.HasPrefix(p.worker.GPUs[0].PCI, domain[1]+":")
}

// roots returns the IDs of what is at error level, and whatever else is wrong with the report.
func roots(report doctor.Report) string {
	var ids []string
	for _, f := range report.Items {
		switch {
		case f.Severity == finding.Error && !f.Root:
			ids = append(ids, f.ID+" (no root)")
		case f.Severity == finding.Error, f.Severity == finding.Warning:
			ids = append(ids, f.ID)
			if len(f.Evidence) == 0 || f.Fix.Text == "" {
				ids = append(ids, "(without evidence or fix)")
			}
		}
	}
	slices.Sort(ids)
	return strings.Join(ids, " ")
}

func describe(report doctor.Report) string {
	var lines []string
	for _, f := range report.Items {
		lines = append(lines,
			fmt.Sprintf("%s %s root=%t %s on %s: %+v", f.Severity, f.ID, f.Root, f.Title, f.Object, f.Evidence))
	}
	return strings.Join(lines, "\n")
}

// A healthy cluster has no finding, and nothing is left of the look at it.
func TestDoctorOnAHealthyCluster(t *testing.T) {
	p := newPatient(t)
	report := p.ask()
	if got := roots(report); got != "" {
		t.Errorf("doctor finds %s on a healthy cluster:\n%s", got, describe(report))
	}
	if report.Summary.GPUNodes != 2 || report.Summary.NodesRead != 1 || report.Summary.Checks < 60 {
		t.Errorf("%+v", report.Summary)
	}
	p.noPods()
}

// For every fault that this tool can make doctor has exactly one root: the run while it is known, and what is really
// wrong for those who must not know of it.
func TestDoctorFindsEveryFault(t *testing.T) {
	type row struct {
		fault string
		args  []string
		pod   bool // a GPU pod is made, so that there are symptoms
		runs  bool // it starts all the same
		root  string
	}
	rows := []row{
		{
			fault: "runtime missing-handler", args: []string{"--mode", "missing-handler"}, pod: true,
			root: "rt.handler-missing",
		},
		{
			fault: "runtime wrong-instance", args: []string{"--mode", "wrong-instance"}, pod: true,
			root: "rt.wrong-instance",
		},
		{
			fault: "runtime binary-missing", args: []string{"--mode", "binary-missing"}, pod: true,
			root: "rt.binary-missing",
		},
		{
			fault: "runtime wrong-runtime-type", args: []string{"--mode", "wrong-runtime-type"}, pod: true,
			root: "rt.runtime-type",
		},
		{
			fault: "runtime cgroup-driver", args: []string{"--mode", "cgroup-driver"}, pod: true,
			root: "rt.cgroup-driver",
		},
		{
			fault: "runtime option-misplaced", args: []string{"--mode", "option-misplaced"}, pod: true, runs: true,
			root: "rt.option-misplaced",
		},
		{
			fault: "runtime missing-handler not restarted", args: []string{"--mode", "missing-handler", "--no-restart"},
			root: "rt.edited-not-restarted",
		},
		{
			fault: "runtime unparsable not restarted", args: []string{"--mode", "unparsable", "--no-restart"},
			root: "rt.edited-not-restarted",
		},
	}
	matrix := []string{fmt.Sprintf("%-40s %-26s %s", "FAULT", "ROOT, UNKNOWN RUN", "ROOT, KNOWN RUN")}
	for i, row := range rows {
		ok := t.Run(row.fault, func(t *testing.T) {
			p := newPatient(t)
			run := p.breaks(row.args...)
			name := fmt.Sprintf("gpu-doctor-%d", i)
			switch {
			case row.runs:
				p.gpuPod(name, "sleep", "600")
				p.isRunning(name)
			case row.pod:
				p.gpuPod(name)
				p.hasWarning(name)
			}
			blind, knowing := p.ask("--ignore-injected"), p.ask()
			if got := roots(blind); got != row.root {
				t.Errorf("without knowledge of the run the roots are %q, wanted %q:\n%s", got, row.root,
					describe(blind))
			}
			if got := roots(knowing); got != "fault.injected" {
				t.Errorf("the roots are %q:\n%s", got, describe(knowing))
			} else if fix := fmt.Sprint(knowing.Items[0].Fix); !strings.Contains(fix, "revert "+run.ID) {
				t.Errorf("the fix does not revert %s: %s", run.ID, fix)
			}
			matrix = append(matrix, fmt.Sprintf("%-40s %-26s %s", row.fault, roots(blind), roots(knowing)))
			p.ok("revert", run.ID, "--yes")
			if row.pod && !row.runs {
				p.podRan(name)
			}
			healed := p.ask()
			if got := roots(healed); got != "" {
				t.Errorf("after the revert the roots are %q:\n%s", got, describe(healed))
			}
		})
		if !ok {
			matrix = append(matrix, row.fault+" FAILED")
		}
	}
	t.Log("\n" + strings.Join(matrix, "\n"))
}

// A node whose containerd does not serve at all has one root, before its kubelet gives up waiting for it and after: the
// pod that was to read the node does not start, or the node is not Ready. (dropin-shadow needs a containerd that the
// cluster does not have.)
func TestDoctorOnANodeWithoutRuntime(t *testing.T) {
	for _, mode := range []string{"default-missing", "unparsable"} {
		t.Run(mode, func(t *testing.T) {
			p := newPatient(t)
			p.isNoNewcomer()
			before := p.files()
			// The time is for a machine that is too busy for this test; else the node is healed by hand.
			run := p.breaks("--mode", mode, "--allow-node-loss", "--ttl", "3m")
			heal := fmt.Sprintf("test ! -e /var/lib/gpu-fault/%[1]s || sh /var/lib/gpu-fault/%[1]s/restore.sh", run.ID)
			// Before the revert, which would wait for the dead man
			t.Cleanup(func() { p.worker.Sh(t, "sh", "-c", heal) })

			early := p.ask("--ignore-injected", "--timeout", "15s")
			if got := roots(early); got != "rt.not-ready" && got != "node.not-ready" {
				t.Errorf(
					"soon after, without knowledge of the run, the roots are %q, wanted rt.not-ready or node.not-ready:\n%s",
					got, describe(early),
				)
			}
			p.isReady(corev1.ConditionFalse)
			p.gpuPod("gpu-lost") // a kubelet without a runtime does not even try to start it
			blind, knowing := p.ask("--ignore-injected", "--timeout", "15s"), p.ask("--api-only")
			if got := roots(blind); got != "node.not-ready" {
				t.Errorf("without knowledge of the run the roots are %q, wanted node.not-ready:\n%s", got,
					describe(blind))
			}
			if got := roots(knowing); got != "fault.injected" {
				t.Errorf("by the API only the roots are %q:\n%s", got, describe(knowing))
			} else if fix := fmt.Sprint(knowing.Items[0].Fix); !strings.Contains(fix, "revert "+run.ID) {
				t.Errorf("the fix does not revert %s: %s", run.ID, fix)
			}
			t.Logf("%s: %s, then %s; known: %s", mode, roots(early), roots(blind), roots(knowing))

			p.worker.Sh(t, "sh", "-c", heal)
			p.ok("revert", run.ID, "--yes")
			if after := p.files(); after != before {
				t.Errorf("the node is not as it was.\nbefore:\n%s\nafter:\n%s", before, after)
			}
			p.podRan("gpu-lost")
			p.isReady(corev1.ConditionTrue)
			cluster.Eventually(t, patience, "doctor finds nothing after the revert", func() (bool, string) {
				healed := p.ask()
				return roots(healed) == "", describe(healed)
			})
			p.noPods()
		})
	}
}

// isNoNewcomer waits until the worker is older than doctor's patience with nodes that join: until then not being Ready
// is nothing to worry about.
func (p *patient) isNoNewcomer() {
	p.t.Helper()
	cluster.Eventually(p.t, 6*time.Minute, p.worker.Name+" has been in the cluster for five minutes",
		func() (bool, string) {
			n, err := p.cluster.Client.CoreV1().Nodes().Get(p.t.Context(), p.worker.Name, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			age := time.Since(n.CreationTimestamp.Time)
			return age > 5*time.Minute, age.String()
		})
}

// isReady waits until the worker's kubelet says that it is Ready, or that it is not.
func (e *env) isReady(status corev1.ConditionStatus) {
	e.t.Helper()
	cluster.Eventually(e.t, patience, fmt.Sprintf("Ready of %s is %s", e.worker.Name, status), func() (bool, string) {
		ready := e.worker.Condition(e.t, corev1.NodeReady)
		return ready.Status == status, ready.Message
	})
}

func (e *env) isRunning(pod string) {
	e.t.Helper()
	cluster.Eventually(e.t, patience, "pod "+pod+" is Running", func() (bool, string) {
		got, err := e.cluster.Client.CoreV1().Pods("default").Get(e.t.Context(), pod, metav1.GetOptions{})
		return err == nil && got.Status.Phase == corev1.PodRunning, fmt.Sprint(got.Status.Phase, err)
	})
}

// hasWarning waits until the kubelet has said what is wrong with a pod.
func (e *env) hasWarning(pod string) {
	e.t.Helper()
	cluster.Eventually(e.t, patience, "the kubelet says what is wrong with pod "+pod, func() (bool, string) {
		events, err := e.cluster.Client.CoreV1().Events("default").List(e.t.Context(), metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("involvedObject.name", pod).String(),
		})
		if err != nil {
			return false, err.Error()
		}
		said := ""
		for _, event := range events.Items {
			said += event.Reason + ": " + event.Message + "\n"
		}
		return strings.Contains(said, "Failed"), said
	})
}

// Each XID is found, whether by the run that wrote it or, by those who do not know that, for what it says.
func TestDoctorFindsXIDs(t *testing.T) {
	matrix := []string{fmt.Sprintf("%-10s %-26s %s", "XID", "ROOT, UNKNOWN RUN", "ROOT, KNOWN RUN")}
	for _, row := range []struct{ code, root string }{
		{"79", "hw.gpu-lost"}, {"48", "hw.ecc"}, {"64", "hw.row-remap"}, {"74", "hw.nvlink"}, {"119", "drv.gsp"},
		{"62", "hw.xid-recent"},
	} {
		ok := t.Run(row.code, func(t *testing.T) {
			p := newPatient(t)
			p.ok("xid", row.code, p.worker.Name, "--allow-majority", "--yes")
			blind, knowing := p.ask("--ignore-injected"), p.ask()
			if got := roots(blind); got != row.root {
				t.Errorf("without knowledge of the run the roots are %q, wanted %q:\n%s", got, row.root,
					describe(blind))
			}
			if got := roots(knowing); got != "fault.injected" {
				t.Errorf("the roots are %q:\n%s", got, describe(knowing))
			}
			matrix = append(matrix, fmt.Sprintf("%-10s %-26s %s", row.code, roots(blind), roots(knowing)))
			p.ok("revert", "--all", "--yes")
		})
		if !ok {
			matrix = append(matrix, row.code+" FAILED")
		}
	}
	t.Log("\n" + strings.Join(matrix, "\n"))
}

// A CUDA fault is found in the pods that it breaks: by its run, or by the interposer that they preload.
func TestDoctorFindsCUDAFaults(t *testing.T) {
	c := setupCUDA(t)
	p := &patient{env: c.env, began: time.Now()}
	p.worker.RestartNPD(t) // forgets the XIDs of older tests
	p.control.RestartNPD(t)
	train := c.create(c.deployment("train"))
	c.healthy("train", 1)
	before := asUserSees(t, train())
	for _, fault := range [][]string{{"--xid", "79"}, {"--error", "719"}} {
		seen := c.watchCrashes("train")
		run := c.inject(append([]string{"deployment/train"}, fault...)...)
		seen.has(map[string]int{"79": 999, "719": 719}[fault[1]], 1)
		blind, knowing := p.ask("--ignore-injected"), p.ask()
		if got := roots(blind); got != "wl.cuda-preload" {
			t.Errorf("%v: without knowledge of the run the roots are %q:\n%s", fault, got, describe(blind))
		}
		if got := roots(knowing); got != "fault.injected" {
			t.Errorf("%v: the roots are %q:\n%s", fault, got, describe(knowing))
		}
		t.Logf("%v: %s, %s", fault, roots(blind), roots(knowing))
		c.reverted(run, before, train)
		c.healthy("train", 1)
	}
	if report := p.ask(); roots(report) != "" {
		t.Errorf("after the revert:\n%s", describe(report))
	}
}

// A fault of ours, or a broken node, hides nothing that is wrong by itself.
func TestDoctorTellsTwoFaultsApart(t *testing.T) {
	p := newPatient(t)
	p.breaks("--mode", "missing-handler")
	p.gpuPod("gpu-waits")
	p.hasWarning("gpu-waits")
	greedy := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu-greedy"},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(0)), Containers: []corev1.Container{{
			Name: "c", Image: "busybox:1.35", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("16")},
			},
		}}},
	}
	pods := p.cluster.Client.CoreV1().Pods("default")
	if _, err := pods.Create(t.Context(), greedy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pods.Delete(context.Background(), greedy.Name, metav1.DeleteOptions{}) })
	cluster.Eventually(t, patience, "doctor takes the Pending pod for more than a new one", func() (bool, string) {
		report := p.ask()
		return roots(report) == "fault.injected sched.bigger-than-any-node", describe(report)
	})
	if blind := p.ask("--ignore-injected"); roots(blind) != "rt.handler-missing sched.bigger-than-any-node" {
		t.Errorf("without knowledge of the run:\n%s", describe(blind))
	}
}

// A bundle says offline what doctor says online, and has no secrets in it.
func TestDoctorFromABundle(t *testing.T) {
	p := newPatient(t)
	p.breaks("--mode", "binary-missing")
	p.gpuPod("gpu-bundle")
	p.hasWarning("gpu-bundle")
	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	since := p.since() // counts from when the bundle was made, also later
	online := p.ask("--bundle", file, "--ignore-injected")
	r := p.pluginWith([]string{"KUBECONFIG=/nonexistent"}, "doctor", "--from-bundle", file, "--ignore-injected", "-o",
		"json", "--since", since)
	var offline doctor.Report
	p.decode(r.stdout, &offline)
	offline.Items = p.own(offline.Items)
	if got, want := roots(offline), roots(online); got != want || got != "rt.binary-missing" || r.code != 2 {
		t.Errorf("offline %q, online %q, exit %d\n%s\n%s", got, want, r.code, r.stderr, describe(offline))
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("the bundle is readable by others: %v, %v", info, err)
	}
}
