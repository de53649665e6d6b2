//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/rbac"
)

// covered says for a feature how it is seen that its roles are enough, and that each rule is asked for.
type covered struct {
	// works does for real what the feature allows, as a user with its roles and nothing else.
	works func(*rights)
	// asks are commands of which one must name a rule that the user lacks, before it changes anything.
	asks func(r *rights, rule fault.Permission) [][]string
	// prepare makes what the commands are about; may be nil.
	prepare func(*rights)
	// goesOn says that nothing is refused: what cannot be seen is told of.
	goesOn bool
	// atOnce says that many rules are missing at a time.
	atOnce bool
	// exempt are rules that no command here comes to, with the reason.
	exempt map[string]string
	// others are features that whoever has this one has too.
	others []string
}

func coverage() map[string]covered {
	return map[string]covered{
		"xid":      {works: (*rights).xidWorks, asks: (*rights).xidAsks},
		"real-xid": {works: (*rights).realWorks, asks: (*rights).realAsks},
		"runtime":  {works: (*rights).runtimeWorks, asks: (*rights).runtimeAsks},
		"device":   {works: (*rights).deviceWorks, asks: (*rights).deviceAsks},
		"network":  {works: (*rights).networkWorks, asks: (*rights).networkAsks, prepare: (*rights).networkPrepare},
		"chaos-mesh": {
			works: (*rights).chaosMeshWorks, asks: (*rights).chaosMeshAsks, prepare: (*rights).chaosMeshPrepare,
		},
		"taint": {works: (*rights).taintWorks, asks: (*rights).taintAsks, prepare: (*rights).taintPrepare},
		"cuda":  {works: (*rights).cudaWorks, asks: (*rights).cudaAsks, prepare: (*rights).cudaPrepare},
		"nvml": {
			works: (*rights).nvmlWorks, asks: (*rights).nvmlAsks, prepare: (*rights).nvmlPrepare,
			others: []string{"xid"}, exempt: map[string]string{"get pods": "xid has it in the namespace of the test"},
		},
		"doctor": {works: (*rights).doctorWorks, asks: (*rights).doctorAsks, goesOn: true},
		"list":   {works: (*rights).listWorks, asks: (*rights).listAsks},
		"watch":  {works: (*rights).watchWorks, asks: (*rights).watchAsks, prepare: (*rights).revertPrepare},
		"revert": {works: (*rights).revertWorks, asks: (*rights).revertAsks, prepare: (*rights).revertPrepare},
		"leftovers": { // it reads only namespaces with a record
			works: (*rights).leftoversWorks, asks: (*rights).leftoversAsks, prepare: (*rights).revertPrepare,
			goesOn: true,
		},
		"remediation": {
			works: (*rights).remediationWorks, asks: (*rights).remediationAsks, others: []string{"watch"},
			exempt: map[string]string{
				"get nodes": "the target is read first", "list nodes": "watch has it", "list pods": "watch has it",
				"get namespaces": "watch has it",
			},
		},
		"scenario": {works: (*rights).scenarioWorks, asks: (*rights).scenarioAsks, atOnce: true},
		"fix": {
			works: (*rights).fixWorks, asks: (*rights).fixAsks, prepare: (*rights).fixPrepare,
			others: []string{"doctor"}, exempt: restarts(),
		},
	}
}

// Whoever has the roles of a feature, as they are printed, can do all of it. A feature that is new in the table fails
// here until it has a test.
func TestRolesAreEnough(t *testing.T) {
	for _, feature := range rbac.Features() {
		t.Run(feature.Name, func(t *testing.T) {
			r := newRights(t, feature)
			r.applyPrinted()
			r.covered.works(r)
		})
	}
}

// Whoever lacks one rule of a feature learns which, and how to get it, and nothing is changed. The rules are those of
// the table: one that is new there fails here until a command asks for it.
func TestEveryRuleIsAskedFor(t *testing.T) {
	for _, feature := range rbac.Features() {
		t.Run(feature.Name, func(t *testing.T) {
			r := newRights(t, feature)
			rules := r.rules()
			if r.atOnce {
				r.areAskedFor(rules)
				return
			}
			r.grantWithoutEach(rules)
			if r.prepare != nil {
				r.prepare(r)
			}
			before := len(r.runs("--all"))
			var group errgroup.Group
			group.SetLimit(4)
			for i, rule := range rules {
				group.Go(func() error { r.isAskedFor(i, rule); return nil })
			}
			_ = group.Wait()
			r.noPods()
			if feature.Name == "revert" { // its optional rules take runs that are reverted
				return
			}
			if after := len(r.runs("--all")); after != before {
				t.Errorf("%d runs, %d before: something was not refused", after, before)
			}
		})
	}
}

// rights is a test of a feature's roles.
type rights struct {
	*cuda
	feature rbac.Feature
	covered
	user string // with exactly these roles
	// resources are what the API server serves.
	resources func() ([]*metav1.APIResourceList, error)
	// run is an open run of somebody else, for those who revert.
	run string
	one sync.Mutex
}

func newRights(t *testing.T, feature rbac.Feature) *rights {
	t.Helper()
	covered, ok := coverage()[feature.Name]
	if !ok {
		t.Fatalf("feature %s has no test", feature.Name)
	}
	r := &rights{cuda: setupCUDA(t), feature: feature, covered: covered}
	r.user = "user-" + r.namespace
	r.resources = sync.OnceValues(func() ([]*metav1.APIResourceList, error) {
		_, lists, err := r.cluster.Client.Discovery().ServerGroupsAndResources()
		return lists, err
	})
	r.makeLedger(map[string]string{"pod-security.kubernetes.io/enforce": "privileged"})
	return r
}

// rules returns those of the printed roles.
func (r *rights) rules() []fault.Permission {
	r.t.Helper()
	all, err := r.feature.Permissions(rbac.Scope{Ledger: r.ledger, Workloads: r.namespace})
	if err != nil {
		r.t.Fatal(err)
	}
	return fault.Least(all)
}

// asUser returns a command line as a user.
func (r *rights) asUser(user string, args ...string) []string {
	return append(slices.Clone(args), "-n", r.namespace, "--as", user)
}

// does runs a command as the user with the roles, which may not be told of anything that it lacks.
func (r *rights) does(args ...string) string {
	r.t.Helper()
	out := r.ok(r.asUser(r.user, args...)...)
	for _, word := range []string{"forbidden", "you are not allowed to"} {
		if strings.Contains(out.stderr, word) {
			r.t.Errorf("%v: with exactly its roles %s lacks something:\n%s", args, r.feature.Name, out.stderr)
		}
	}
	return out.stdout
}

// isAskedFor holds that some command names the rule that user i lacks. Nobody asks for what the cluster does not serve.
func (r *rights) isAskedFor(i int, rule fault.Permission) {
	if !r.served(rule) || r.exempt[rule.String()] != "" {
		return
	}
	var said strings.Builder
	for _, args := range r.asks(r, rule) {
		got := r.plugin(r.asUser(r.without(i), args...)...)
		fmt.Fprintf(&said, "$ %s\n%s%s", strings.Join(args, " "), got.stdout, got.stderr)
		if !names(got.stdout+got.stderr, rule) {
			continue
		}
		switch {
		case rule.Optional || r.goesOn:
			// As leftovers says where it found nothing
			if got.code == 1 && !strings.Contains(got.stderr, "could not be checked") {
				r.t.Errorf("without %q, which it can do without, it failed:\n%s", rule, &said)
			}
		case got.code != 1:
			r.t.Errorf("without %q: exit %d, wanted 1:\n%s", rule, got.code, &said)
		}
		if !rule.Optional && !strings.Contains(got.stderr, "kubectl gpu-fault rbac print --for ") {
			r.t.Errorf("without %q nobody says how to get it:\n%s", rule, &said)
		}
		return
	}
	r.t.Errorf("nobody says that %q is missing:\n%s", rule, &said)
}

// names reports whether a text says that the user lacks the rule: in our words, or in the API server's.
func names(text string, rule fault.Permission) bool {
	name := rule.Resource
	if rule.Group != "" {
		name += "." + rule.Group
	}
	for _, words := range []string{
		"you are not allowed to " + rule.String(),
		fmt.Sprintf("cannot %s resource %q", rule.Verb, rule.Resource),
		"not checked: " + name + ":",
		"not checked: " + name + " in ",
	} {
		if strings.Contains(strings.ReplaceAll(text, `\"`, `"`), words) {
			return true
		}
	}
	return false
}

func (r *rights) without(i int) string { return fmt.Sprintf("%s-without-%d", r.user, i) }

func (r *rights) xidWorks() {
	run := strings.TrimPrefix(strings.TrimSpace(
		r.does("xid", "43", r.worker.Name, "--gpu", "0", "--yes", "-o", "name"),
	),
		"run/")
	if runs := r.runs(); len(runs) != 1 || runs[0].By != r.user {
		r.t.Errorf("run %s: the ledger says %+v, wanted it by %s", run, runs, r.user)
	}
	r.does("revert", run, "--yes")
	r.noPods()
}

func (r *rights) xidAsks(rule fault.Permission) [][]string {
	args := []string{"xid", "43", r.worker.Name, "--yes", "--dry-run=server"}
	if rule.Resource == "pods" && rule.Namespace == r.namespace { // --pod reads one
		return [][]string{{"xid", "43", "--pod", "nobody", "--yes", "--dry-run=server"}}
	}
	return [][]string{args}
}

func (r *rights) runtimeWorks() {
	r.does("runtime", "show", r.worker.Name)
	run := strings.TrimPrefix(strings.TrimSpace(r.does("runtime", "break", r.worker.Name, "--mode", "missing-handler",
		"--ttl", "5m", "--allow-majority", "--yes", "-o", "name")), "run/")
	r.does("revert", run, "--yes")
	r.noPods()
}

func (r *rights) runtimeAsks(rule fault.Permission) [][]string {
	if rule.Resource == "pods" && rule.Namespace == r.namespace {
		return r.xidAsks(rule)
	}
	return [][]string{
		{
			"runtime", "break", r.worker.Name, "--mode", "missing-handler", "--allow-majority", "--yes",
			"--dry-run=server",
		},
	}
}

func (r *rights) deviceWorks() {
	r.does("device", "list", r.worker.Name)
	run := strings.TrimPrefix(
		strings.TrimSpace(r.does("device", "unhealthy", r.worker.Name, "--gpu", "0", "--ttl", "5m",
			"--allow-majority", "--yes", "-o", "name")),
		"run/",
	)
	r.does("revert", run, "--yes")
	r.noPods()
}

func (r *rights) deviceAsks(rule fault.Permission) [][]string {
	if rule.Resource == "pods" && rule.Namespace == r.namespace {
		return r.xidAsks(rule)
	}
	return [][]string{
		{"device", "unhealthy", r.worker.Name, "--gpu", "0", "--allow-majority", "--yes", "--dry-run=server"},
	}
}

func (r *rights) nvmlPrepare() {
	r.kubectl("label", "namespace", r.namespace, "pod-security.kubernetes.io/enforce=privileged", "--overwrite")
	d := r.deployment("train")
	d.Spec.Template.Spec.Volumes = append(d.Spec.Template.Spec.Volumes, corev1.Volume{ // as the pod of a DRA driver
		Name: "registry", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/kubelet/plugins_registry"},
		},
	})
	r.create(&appsv1.DaemonSet{
		ObjectMeta: d.ObjectMeta, Spec: appsv1.DaemonSetSpec{Selector: d.Spec.Selector, Template: d.Spec.Template},
	})
	r.healthy("train", 2)
}

func (r *rights) nvmlWorks() {
	r.nvmlPrepare()
	args := r.nvmlAsks(fault.Permission{})[0]
	args[len(args)-1] = "-o=name"
	r.does(args...)
	r.does("revert", r.runs()[0].ID, "--yes")
	r.nothingLeft()
}

func (r *rights) nvmlAsks(fault.Permission) [][]string {
	return [][]string{{
		"xid", "48", r.worker.Name, "--layers", "kernel,nvml", "--daemonset", r.namespace + "/train",
		"--allow-last-gpu-node", "--allow-majority", "--yes", "--dry-run=server",
	}}
}

func (r *rights) listWorks() { r.does("list") }

func (r *rights) listAsks(fault.Permission) [][]string {
	return [][]string{{"list"}, {"revert", "xid-7k3f9q", "--yes"}}
}

func (r *rights) watchWorks() { r.does("watch", r.inject43(), "--for", "1s") }

func (r *rights) watchAsks(fault.Permission) [][]string {
	return [][]string{{"watch", r.run, "--for", "1s"}}
}

// remediationWorks cordons nothing, because nothing breaks: the rules are asked for before.
func (r *rights) remediationWorks() {
	r.does(r.remediationAsks(fault.Permission{})[0]...)
}

func (r *rights) remediationAsks(fault.Permission) [][]string {
	file := experimentFile(r.t, "target: {node: "+r.worker.Name+"}", "- wait: 1s\n")
	return [][]string{{
		"run", "-f", file, "--simulate-remediation", "cordon,drain", "--yes", "--allow-last-gpu-node",
		"--allow-majority",
	}}
}

func (r *rights) revertWorks() {
	run := r.inject43()
	r.does("revert", run, "--yes")
}

// inject43 returns a run of the administrator.
func (r *rights) inject43() string {
	r.t.Helper()
	r.one.Lock() // a node has one run in its way
	defer r.one.Unlock()
	out := r.ok("xid", "43", r.worker.Name, "--gpu", "0", "--yes", "-o", "name").stdout
	return strings.TrimPrefix(strings.TrimSpace(out), "run/")
}

func (r *rights) revertPrepare() { r.run = r.inject43() }

func (r *rights) revertAsks(rule fault.Permission) [][]string {
	if rule.Optional { // then it is reverted
		return [][]string{{"revert", r.inject43(), "--yes"}}
	}
	return [][]string{{"revert", r.run, "--yes"}, {"revert", "--all", "--yes"}}
}

func (r *rights) leftoversWorks() {
	out := r.plugin(r.asUser(r.user, "leftovers")...)
	if out.code == 1 || strings.Contains(out.stderr, "not checked") {
		r.t.Errorf("leftovers: exit %d: %s", out.code, out.stderr)
	}
}

func (r *rights) leftoversAsks(fault.Permission) [][]string { return [][]string{{"leftovers"}} }

func (r *rights) doctorWorks() {
	r.does("doctor", "--node", r.worker.Name, "--fail-on", "never")
	r.noPods()
}

func (r *rights) doctorAsks(rule fault.Permission) [][]string {
	if rule.Optional {
		return [][]string{{"doctor", "--api-only", "--fail-on", "never", "-o", "json"}}
	}
	return [][]string{{"doctor", "--node", r.worker.Name, "--fail-on", "never"}}
}
