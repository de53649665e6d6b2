package engine

import (
	"fmt"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// changes matches commands that change an object. The groups are its namespace, kind and name.
var changes = regexp.MustCompile(
	`^kubectl (?:-n (\S+) )?(?:edit|patch|set \w+|label|annotate) ([a-z]+)[ /](\S+)(?: -n (\S+))?`,
)

// owned adds to each fix a sentence about the managers of the objects that its commands change. It drops commands whose
// changes a manager would revert.
func (r *Result) owned(f *facts.Facts) {
	for i := range r.Findings {
		fix := &r.Findings[i].Fix
		var commands []string
		for _, command := range fix.Commands {
			by, reverted := managerOf(f, command)
			if by != "" && !strings.Contains(fix.Text, by) {
				fix.Text = strings.TrimSpace(strings.TrimSuffix(fix.Text, ".") + ". " + by)
			}
			if !reverted {
				commands = append(commands, command)
			}
		}
		fix.Commands = commands
	}
}

// managerOf returns a sentence about the manager of the object that a command changes, or "" if no manager is known.
// reverted is true if the manager reverts manual changes.
func managerOf(f *facts.Facts, command string) (by string, reverted bool) {
	m := changes.FindStringSubmatch(command)
	if m == nil {
		return "", false
	}
	kind := m[2]
	meta := f.MetaOf(kind, m[1]+m[4], m[3])
	if meta == nil {
		return "", false
	}
	labels, annotations := meta.GetLabels(), meta.GetAnnotations()
	argo, _, _ := strings.Cut(annotations["argocd.argoproj.io/tracking-id"], ":")
	for _, gitOps := range []struct{ manager, name string }{
		{"Argo CD manages the %s (application %s)", argo},
		{"Argo CD manages the %s (application %s)", labels["argocd.argoproj.io/instance"]},
		{"Flux manages the %s (Kustomization %s)", labels["kustomize.toolkit.fluxcd.io/name"]},
		{"Flux manages the %s (HelmRelease %s)", labels["helm.toolkit.fluxcd.io/name"]},
	} {
		if gitOps.name != "" {
			return fmt.Sprintf(gitOps.manager, kind, words.Clip(gitOps.name)) +
				" and reverts other changes: make the change in its Git source.", true
		}
	}
	if strings.EqualFold(labels["addonmanager.kubernetes.io/mode"], "Reconcile") {
		return fmt.Sprintf("The platform's addon manager owns the %s and reverts changes.", kind), true
	}
	if owner := metav1.GetControllerOfNoCopy(meta); owner != nil {
		return fmt.Sprintf("%s %s owns the %s and reverts changes: make the change there.", owner.Kind,
			words.Clip(owner.Name), kind), true
	}
	if release := annotations["meta.helm.sh/release-name"]; release != "" {
		return fmt.Sprintf(
			"The %s belongs to the Helm release %s: also set the value in the release, or the next upgrade reverts "+
				"the change.", kind,
			words.Clip(release),
		), false
	}
	return "", false
}
