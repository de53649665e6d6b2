//go:build e2e

package e2e

import (
	"context"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
)

type deleter interface {
	Delete(ctx context.Context, name string, options metav1.DeleteOptions) error
}

func (e *env) drop(of deleter, name string) {
	_ = of.Delete(context.Background(), name, metav1.DeleteOptions{}) // what is left here is of a user whom nobody is
}

func (r *rights) cudaWorks() {
	get := r.create(r.deployment("train"))
	r.healthy("train", 1)
	before := asUserSees(r.t, get())
	run := strings.TrimPrefix(strings.TrimSpace(
		r.does("cuda", "inject", "deployment/train", "--xid", "79", "--disarmed", "--yes", "-o", "name"),
	), "run/")
	r.does("cuda", "arm", run, "--latency", "5ms", "--yes")
	r.does("cuda", "status", run)
	r.does("cuda", "disarm", run, "--yes")
	r.does("revert", run, "--yes")
	r.same(before, get())
	r.nothingLeft()
}

// cudaPrepare makes a workload of each kind, without pods where that can be.
func (r *rights) cudaPrepare() {
	d := r.deployment("train")
	none := new(int32(0))
	d.Spec.Replicas = none
	r.create(d)
	r.create(&appsv1.StatefulSet{ObjectMeta: d.ObjectMeta, Spec: appsv1.StatefulSetSpec{
		Replicas: none, Selector: d.Spec.Selector, Template: d.Spec.Template, ServiceName: "none",
	}})
	r.create(&appsv1.DaemonSet{
		ObjectMeta: d.ObjectMeta, Spec: appsv1.DaemonSetSpec{Selector: d.Spec.Selector, Template: d.Spec.Template},
	})
	job := r.template("job")
	job.Spec.RestartPolicy = corev1.RestartPolicyNever
	r.create(&batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "train"}, Spec: batchv1.JobSpec{Suspend: new(true), Template: job},
	})
	r.create(&batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "train"}, Spec: batchv1.CronJobSpec{
		Schedule: "0 0 1 1 *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: job}},
	}})
}

func (r *rights) cudaAsks(rule fault.Permission) [][]string {
	workload, more := "deployment/train", []string(nil)
	switch rule.Resource {
	case "statefulsets", "daemonsets", "cronjobs", "jobs":
		if rule.Namespace == r.namespace {
			workload = strings.TrimSuffix(rule.Resource, "s") + "/train"
		}
		if rule.Resource == "jobs" && rule.Namespace == r.namespace {
			more = []string{"--recreate"}
		}
	case "replicasets", "pods":
		if rule.Verb == "get" {
			workload = strings.TrimSuffix(rule.Resource, "s") + "/nobody"
		}
	}
	args := append([]string{"cuda", "inject", workload, "--xid", "79", "--yes", "--dry-run=server"}, more...)
	return [][]string{args}
}

func (r *rights) networkWorks() {
	r.networkPrepare()
	pod := r.pods("train")[0]
	for _, args := range [][]string{
		{"--workload", "deployment/train", "--to", "dns"}, {"--pod", pod.Name, "--from", "pod/" + pod.Name},
		{r.worker.Name},
	} {
		run := r.does(slices.Concat([]string{"network", "partition"}, args,
			[]string{"--ttl", "5m", "--allow-majority", "--yes", "-o", "name"})...)
		r.does("revert", strings.TrimPrefix(strings.TrimSpace(run), "run/"), "--yes")
	}
	r.noPods()
}

// networkPrepare creates a pod on the worker that can be cut off.
func (r *rights) networkPrepare() {
	d := r.deployment("train")
	d.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: r.worker.Name}
	r.create(d)
	r.healthy("train", 1)
}

func (r *rights) networkAsks(rule fault.Permission) [][]string {
	common := []string{"--allow-majority", "--yes", "--dry-run=server"}
	targets := [][]string{{r.worker.Name}, {"--pod", "nobody"}}
	if rule.Group == "apps" || rule.Group == "batch" && rule.Verb == "get" && rule.Resource == "jobs" {
		targets = [][]string{{"--workload", rule.Resource + "/nobody"}}
	}
	var all [][]string
	for _, target := range targets {
		all = append(all, slices.Concat([]string{"network", "partition"}, target, common))
	}
	return all
}

func (r *rights) fixWorks() {
	r.fixPrepare()
	r.does("doctor", "--fix", missingClass, "--yes")
	if !r.hasClass() {
		r.t.Error("the RuntimeClass was not made")
	}
	r.does("revert", r.runs()[0].ID, "--yes")
}

// restarts returns what a restart of the device plugin takes: that is mended only where a node lost its GPUs, as in
// TestDoctorMendsAForgottenDevicePlugin, with the same preflight.
func restarts() map[string]string {
	why := "the device plugin would have to fail"
	return map[string]string{"delete pods": why, "get pods": why, "list pods": why, "get daemonsets.apps": why}
}

// missingClass is the finding that fixPrepare makes.
const missingClass = "rc.handler-mismatch"

func (r *rights) fixPrepare() {
	r.withoutRuntimeClass()
	r.classedDeployment("rbac-fix")
}

func (r *rights) fixAsks(rule fault.Permission) [][]string {
	return [][]string{{"doctor", "--fix", missingClass, "--dry-run=server"}}
}

func (r *rights) scenarioWorks() {
	r.does("scenario", "start", "gpu-resources", "--seed", "1", "--yes")
	r.does("scenario", "end", "--yes")
}

// scenarioAsks tries the scenarios until one names the rule.
func (r *rights) scenarioAsks(rule fault.Permission) [][]string {
	var all [][]string
	for _, name := range r.scenarios() {
		all = append(all, []string{"scenario", "start", name, "--seed", "1", "--yes", "--dry-run=server"})
	}
	return all
}

// scenarios returns some that differ in what they take: workloads, a node's runtime, rights, others' pods.
func (r *rights) scenarios() []string {
	return []string{"noop", "gpu-resources", "runtime-handler", "wrong-role-binding"}
}

// areAskedFor is for features with so many rules that a command for each would take too long: once somebody who may
// only read, and once somebody who may do all but read, asks for every scenario, and is told all that is missing. The
// API server is asked about each rule by itself, so that this says the same. Optional rules are left out: they are told
// of only where no other is missing.
func (r *rights) areAskedFor(rules []fault.Permission) {
	isRead := func(p fault.Permission) bool { return p.Verb == "get" || p.Verb == "list" }
	isGround := func(p fault.Permission) bool {
		return p.Resource == "nodes" || p.Resource == "namespaces" || p.Resource == "pods"
	} // to come to the question at all
	reader, writer := r.user+"-reads", r.user+"-writes"
	for user, has := range map[string]func(fault.Permission) bool{
		reader: isRead, writer: func(p fault.Permission) bool { return !isRead(p) || isGround(p) && isRead(p) },
	} {
		may := slices.DeleteFunc(slices.Clone(rules), func(p fault.Permission) bool { return !has(p) })
		for _, object := range fault.Roles(
			user, may, []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		) {
			if err := r.make(object); err != nil {
				r.t.Fatal(err)
			}
		}
		r.inForce(user, may[len(may)-1])
	}
	said, asked, drawn := "", 0, []string(nil)
	for _, name := range r.scenarios() {
		for _, user := range []string{reader, writer} {
			said += r.plugin(
				r.asUser(user, "scenario", "start", name, "--seed", "1", "--yes", "--dry-run=server")...,
			).stderr
		}
	}
	for _, rule := range rules {
		switch {
		case rule.Optional || isRead(rule) && isGround(rule) || !r.served(rule):
		case isGrouped(said, rule):
			asked++
		default:
			drawn = append(drawn, rule.String())
		}
	}
	// What a scenario needs depends on what is drawn, and the roles are for whatever is; so some rules are asked for
	// with other seeds only.
	r.t.Logf("%d rules are asked for; others, with this seed, are not: %s", asked, strings.Join(drawn, ", "))
	if asked == 0 {
		r.t.Errorf("nobody asks for any rule:\n%s", said)
	}
}

// isGrouped reports whether a text has the rule in a line of several: create,get pods in namespace a.
func isGrouped(text string, rule fault.Permission) bool {
	name := rule.Resource
	if rule.Group != "" {
		name += "." + rule.Group
	}
	for line := range strings.Lines(text) {
		const first = "error: nothing was changed: you are not allowed to "
		words := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), first))
		if len(words) > 1 && strings.TrimSuffix(words[1], ";") == name &&
			slices.Contains(strings.Split(words[0], ","), rule.Verb) {
			return true
		}
	}
	return false
}
