package scenario

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

// NeedsConsent returns what the scenario does or gives to the candidate that a cluster's owner should agree to before
// it comes from somebody else's file: root on nodes, the hosts' files and network, rights over the whole cluster,
// others' Secrets and namespaces. Ask it of what Resolve returned: of a file that was only parsed, whatever an
// expression may become counts as the worst.
func (s Scenario) NeedsConsent() []string {
	c := consent{own: map[string]bool{}}
	c.ownNamespaces(s)
	c.access(s.Public.Access)
	c.steps("setup", s.Setup)
	c.steps("inject", s.Inject)
	c.checks("healthy", s.Healthy)
	c.checks("sealed.broken", s.Sealed.Broken)
	c.checks("sealed.grade.fixed", s.Sealed.Grade.Fixed)
	c.checks("sealed.grade.unchanged", s.Sealed.Grade.Unchanged)
	if s.source != nil {
		c.unknown(s.source.root, "")
	}
	slices.Sort(c.found)
	return slices.Compact(c.found)
}

type consent struct {
	found []string
	own   map[string]bool // namespaces that the scenario makes itself, and its ClusterRoles
}

func (c *consent) add(where, format string, args ...any) {
	c.found = append(c.found, fmt.Sprintf(format, args...)+" ("+where+")")
}

func (c *consent) ownNamespaces(s Scenario) {
	for _, step := range slices.Concat(s.Setup, s.Inject) {
		if step.Create == nil {
			continue
		}
		for _, object := range step.Create.Objects {
			if ref := refOf(object); ref.Kind == "Namespace" && !protected(ref.Name) {
				c.own[ref.Name] = true
			} else if ref.Kind == "ClusterRole" {
				c.own["ClusterRole/"+ref.Name] = true
			}
		}
	}
}

// unknown finds what only Resolve will know, where the format has more than a number.
func (c *consent) unknown(n *node, path string) {
	if n.later && (strings.HasPrefix(path, "setup") || strings.HasPrefix(path, "inject") ||
		strings.HasPrefix(path, "public.access")) {
		c.add(path, "something that is known only once the parameters are drawn")
	}
	for _, e := range n.keys {
		c.unknown(e.value, expr.Join(path, e.name))
	}
	for i, item := range n.items {
		c.unknown(item, fmt.Sprintf("%s[%d]", path, i))
	}
}

func (c *consent) access(a Access) {
	if a.NodeShell {
		c.add("public.access.nodeShell", "the candidate becomes root on the nodes")
	}
	c.rules("public.access.rules", "the candidate", a.Rules)
	for _, ns := range a.Namespaces {
		if !c.own[ns] {
			c.add("public.access.namespaces",
				"the candidate becomes admin of namespace %s, which the scenario does not make itself", ns)
		}
	}
	if w := a.Workload; w != nil && !c.own[w.Namespace] {
		c.add("public.access.workload", "the candidate changes %s %s in namespace %s, and so runs what they want there",
			w.Kind, w.Name, w.Namespace)
	}
	for _, ns := range a.Read {
		if !c.own[ns] {
			c.add("public.access.read", "the candidate reads namespace %s, which is not the scenario's own", ns)
		}
	}
}

// protected are namespaces that belong to the cluster, or of which it cannot be told.
func protected(ns string) bool {
	return strings.HasPrefix(ns, "kube-") || strings.HasPrefix(ns, "gpu-fault") || strings.Contains(ns, "${")
}

// dangerous are verbs by which one right becomes any other.
var dangerous = []string{"escalate", "bind", "impersonate"}

// rules are rights in the whole cluster.
func (c *consent) rules(where, who string, rules []rbacv1.PolicyRule) {
	for _, r := range rules {
		reads := !slices.ContainsFunc(r.Verbs,
			func(v string) bool { return !slices.Contains([]string{"get", "list", "watch"}, v) })
		what := strings.Join(append(slices.Clone(r.Resources), r.NonResourceURLs...), ", ")
		switch {
		case slices.Contains(r.Verbs, "*") && slices.Contains(r.Resources, "*"):
			c.add(where, "%s may do everything in the whole cluster", who)
		case slices.ContainsFunc(r.Verbs, func(v string) bool { return slices.Contains(dangerous, v) }):
			c.add(where, "%s may %s %s: from there to every right", who, strings.Join(r.Verbs, ", "), what)
		case slices.ContainsFunc(r.Resources,
			func(v string) bool { return v == "*" || strings.HasPrefix(v, "secrets") }):
			c.add(where, "%s may %s %s in the whole cluster, which is all Secrets", who, strings.Join(r.Verbs, ", "),
				what)
		case !reads:
			c.add(where, "%s may %s %s in the whole cluster", who, strings.Join(r.Verbs, ", "), what)
		}
	}
}

func (c *consent) steps(path string, steps []Step) {
	for i, s := range steps {
		where := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case s.Create != nil:
			for j, object := range s.Create.Objects {
				c.object(fmt.Sprintf("%s.create.objects[%d]", where, j), object)
			}
		case s.Patch != nil:
			c.patch(where+".patch", s.Patch)
		case s.XID != nil:
			c.add(where, "XID %s in the kernel log of %s: what watches it may drain or reboot the node", s.XID.Codes,
				s.XID.Node)
		case s.Runtime != nil:
			c.add(where, "a broken containerd configuration (%s) on %s", s.Runtime.Mode, s.Runtime.Node)
		case s.Firewall != nil:
			c.add(where,
				"a firewall rule on %s, which drops what its pods send to TCP port %d anywhere, or get from it",
				s.Firewall.Node, s.Firewall.Port)
		case s.CUDA != nil:
			if ns := s.CUDA.Workload.Namespace; !c.own[ns] {
				c.add(where, "CUDA errors in %s of namespace %s, which is not the scenario's own", s.CUDA.Workload.Name,
					ns)
			}
		}
		c.checks(where+".wait", s.Wait)
	}
}

func refOf(object Object) Ref {
	text := func(v any) string { s, _ := v.(string); return s }
	meta, _ := object["metadata"].(map[string]any)
	return Ref{
		APIVersion: text(object["apiVersion"]), Kind: text(object["kind"]), Namespace: text(meta["namespace"]),
		Name: text(meta["name"]),
	}
}

func (c *consent) object(where string, object Object) {
	ref := refOf(object)
	name := ref.Kind + "/" + ref.Name
	c.place(where, ref)
	c.inside(where, name, object)
	switch ref.Kind {
	case "ClusterRoleBinding":
		role, _ := object["roleRef"].(map[string]any)
		if r, _ := role["name"].(string); !c.own["ClusterRole/"+r] {
			c.add(where, "the role %s in the whole cluster for the subjects of %s", r, name)
		}
	case "ClusterRole":
		c.rules(where, "whoever has "+name, policyRules(object["rules"]))
	case "Role":
		for _, r := range policyRules(object["rules"]) {
			if slices.ContainsFunc(r.Verbs, func(v string) bool { return slices.Contains(dangerous, v) }) {
				c.add(where, "whoever has %s may %s %s", name, strings.Join(r.Verbs, ", "),
					strings.Join(r.Resources, ", "))
			}
		}
	}
}

// place is what kind of object it is, and in whose namespace.
func (c *consent) place(where string, ref Ref) {
	name := ref.Kind + "/" + ref.Name
	switch {
	case strings.Contains(ref.Kind, "${"):
		c.add(where, "an object of a kind that is known only once the parameters are drawn")
	case slices.Contains([]string{"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration",
		"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
		"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "APIService", "CustomResourceDefinition",
		"CertificateSigningRequest"}, ref.Kind):
		c.add(where, "%s, which concerns the whole cluster", name)
	case ref.Kind == "Node":
		c.add(where, "a change of %s", name)
	case ref.Namespace != "" && !c.own[ref.Namespace]:
		c.add(where, "%s in namespace %s, which is not the scenario's own", name, ref.Namespace)
	}
}

func (c *consent) patch(where string, p *Patch) {
	c.place(where, p.Object)
	name := p.Object.Kind + "/" + p.Object.Name
	if slices.Contains([]string{"ClusterRole", "ClusterRoleBinding"}, p.Object.Kind) {
		c.add(where, "a change of %s", name)
	}
	c.inside(where, name, p.Merge)
	c.inside(where, name, p.JSON)
	for _, operation := range p.JSON { // the key may stand in the path: /spec/template/spec/hostNetwork
		o, _ := operation.(map[string]any)
		if path, is := o["path"].(string); is {
			c.key(where, name, path[strings.LastIndexByte(path, '/')+1:], o["value"])
		}
	}
}

// inside looks for what is dangerous wherever it stands in a manifest, so that no kind of workload is forgotten.
func (c *consent) inside(where, name string, value any) {
	switch value := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			c.key(where, name, key, value[key])
			c.inside(where, name, value[key])
		}
	case []any:
		for _, item := range value {
			c.inside(where, name, item)
		}
	}
}

// key is one key of a manifest with its value.
func (c *consent) key(where, name, key string, value any) {
	yes := value == true
	if text, is := value.(string); is {
		yes = strings.Contains(text, "${")
	}
	switch key {
	case "hostPath":
		path, _ := value.(map[string]any)
		c.add(where, "the hosts' files (hostPath %v) in %s", cmp.Or(path["path"], any("?")), name)
	case "hostNetwork", "hostPID", "hostIPC":
		if yes {
			c.add(where, "the hosts' own (%s) in %s", key, name)
		}
	case "privileged":
		if yes {
			c.add(where, "a privileged container in %s", name)
		}
	case "add":
		if more, is := value.([]any); is && len(more) > 0 {
			c.add(where, "a container with capabilities %v in %s", more, name)
		}
	case "pod-security.kubernetes.io/enforce":
		if value == "privileged" || yes {
			c.add(where, "privileged pods are allowed in %s", name)
		}
	case "roleRef":
		role, _ := value.(map[string]any)
		if r, _ := role["name"].(string); strings.HasPrefix(name, "RoleBinding/") &&
			(r == "cluster-admin" || strings.HasPrefix(r, "system:") || strings.Contains(r, "${")) {
			c.add(where, "the role %s for the subjects of %s", r, name)
		}
	}
}

func policyRules(value any) []rbacv1.PolicyRule {
	data, err := json.Marshal(value)
	if err != nil {
		return nil
	}
	var rules []rbacv1.PolicyRule
	if json.Unmarshal(data, &rules) != nil {
		return []rbacv1.PolicyRule{{Verbs: []string{"*"}, Resources: []string{"*"}}} // an expression, say: the worst
	}
	return rules
}

func (c *consent) checks(path string, checks []Check) {
	for i, check := range checks {
		where := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case check.Object != nil:
			c.secrets(where, check.Object.Kind, check.Object.Namespace)
		case check.Objects != nil:
			c.secrets(where, check.Objects.Kind, check.Objects.Namespace)
		case check.Exec != nil && !c.own[check.Exec.Namespace]:
			c.add(where, "a command in pods of namespace %s, which is not the scenario's own", check.Exec.Namespace)
		case check.Logs != nil && !c.own[check.Logs.Namespace]:
			c.add(where, "the logs of namespace %s, which is not the scenario's own", check.Logs.Namespace)
		case check.HTTP != nil && strings.Contains(check.HTTP.URL, "169.254."):
			c.add(where, "a request to %s, where clouds give out the nodes' credentials", check.HTTP.URL)
		case check.Probe != nil:
			c.object(where+".probe", check.Probe.Pod)
		}
	}
}

func (c *consent) secrets(where, kind, ns string) {
	if kind == "Secret" && !c.own[ns] {
		c.add(where, "reading Secrets of %s", cmp.Or(ns, "all namespaces"))
	}
}
