package engine

import (
	"fmt"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
)

// changes matches commands that change an object: its namespace, kind and name.
var changes = regexp.MustCompile(
	`^kubectl (?:-n (\S+) )?(?:edit|patch|set \w+|label|annotate) ([a-z]+)[ /](\S+)(?: -n (\S+))?`,
)

// owned adds to a fix who manages the object that its commands change: what a person changes there does not last.
func (r *Result) owned(f *facts.Facts) {
	for i := range r.Findings {
		fix := &r.Findings[i].Fix
		var commands []string
		for _, command := range fix.Commands {
			by, reverted := "", false
			if m := changes.FindStringSubmatch(command); m != nil {
				if meta := f.MetaOf(m[2], m[1]+m[4], m[3]); meta != nil {
					by, reverted = managed(m[2], meta)
				}
			}
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

// managed returns a sentence on who manages an object, or "". reverted is true if a change by a person would not last.
func managed(kind string, meta *metav1.ObjectMeta) (by string, reverted bool) {
	if app, _, ok := strings.Cut(meta.Annotations["argocd.argoproj.io/tracking-id"], ":"); ok {
		return fmt.Sprintf(
			"Argo CD manages the %s (application %s) and reverts other changes: make the change in its Git source.",
			kind,
			app,
		), true
	}
	if app := meta.Labels["argocd.argoproj.io/instance"]; app != "" {
		return fmt.Sprintf(
			"Argo CD manages the %s (application %s) and reverts other changes: make the change in its Git source.",
			kind,
			app,
		), true
	}
	for _, by := range []struct{ label, what string }{
		{"kustomize.toolkit.fluxcd.io/name", "Kustomization"}, {"helm.toolkit.fluxcd.io/name", "HelmRelease"},
	} {
		if name := meta.Labels[by.label]; name != "" {
			return fmt.Sprintf(
				"Flux manages the %s (%s %s) and reverts other changes: make the change in its Git source.",
				kind,
				by.what,
				name,
			), true
		}
	}
	if strings.EqualFold(meta.Labels["addonmanager.kubernetes.io/mode"], "Reconcile") {
		return fmt.Sprintf(
			"The platform's addon manager owns the %s and reverts changes of what it sets.",
			kind,
		), true
	}
	owner := metav1.GetControllerOfNoCopy(meta)
	switch {
	case owner != nil && kind == "daemonset":
		return fmt.Sprintf(
			"%s %s owns the %s and reverts changes: make the change there.",
			owner.Kind,
			owner.Name,
			kind,
		), true
	case meta.Annotations["meta.helm.sh/release-name"] != "":
		return fmt.Sprintf(
			"The %s belongs to the Helm release %s: also set it in the values, or the next upgrade reverts it.",
			kind,
			meta.Annotations["meta.helm.sh/release-name"],
		), false
	}
	return "", false
}
