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
		for _, command := range fix.Commands {
			m := changes.FindStringSubmatch(command)
			if m == nil {
				continue
			}
			meta := f.MetaOf(m[2], m[1]+m[4], m[3])
			if meta == nil {
				continue
			}
			if by := managed(m[2], meta); by != "" && !strings.Contains(fix.Text, by) {
				fix.Text = strings.TrimSpace(strings.TrimSuffix(fix.Text, ".") + ". " + by)
			}
		}
	}
}

// managed returns a sentence on who manages an object, or "".
func managed(kind string, meta *metav1.ObjectMeta) string {
	if app, _, ok := strings.Cut(meta.Annotations["argocd.argoproj.io/tracking-id"], ":"); ok {
		return fmt.Sprintf("Argo CD manages the %s (application %s) and reverts other changes: make the change in its Git source.",
			kind, app)
	}
	if app := meta.Labels["argocd.argoproj.io/instance"]; app != "" {
		return fmt.Sprintf("Argo CD manages the %s (application %s) and reverts other changes: make the change in its Git source.",
			kind, app)
	}
	for _, by := range []struct{ label, what string }{
		{"kustomize.toolkit.fluxcd.io/name", "Kustomization"}, {"helm.toolkit.fluxcd.io/name", "HelmRelease"},
	} {
		if name := meta.Labels[by.label]; name != "" {
			return fmt.Sprintf("Flux manages the %s (%s %s) and reverts other changes: make the change in its Git source.",
				kind, by.what, name)
		}
	}
	if strings.EqualFold(meta.Labels["addonmanager.kubernetes.io/mode"], "Reconcile") {
		return fmt.Sprintf("The platform's addon manager owns the %s and reverts changes of what it sets.", kind)
	}
	owner := metav1.GetControllerOfNoCopy(meta)
	switch {
	case owner != nil && kind == "daemonset":
		return fmt.Sprintf("%s %s owns the %s and reverts changes: make the change there.", owner.Kind, owner.Name, kind)
	case meta.Annotations["meta.helm.sh/release-name"] != "":
		return fmt.Sprintf("The %s belongs to the Helm release %s: also set it in the values, or the next upgrade reverts it.",
			kind, meta.Annotations["meta.helm.sh/release-name"])
	}
	return ""
}
