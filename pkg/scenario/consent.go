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

// NeedsConsent returns everything in the scenario that needs the cluster owner's consent if the file comes from
// an untrusted source: root on nodes, host files and networking, cluster-wide permissions, and other users'
// Secrets and namespaces. Call it on the result of Resolve: in a scenario that is only parsed, every unresolved
// expression counts as the worst case.
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
	own   map[string]bool // namespaces and ClusterRoles that the scenario creates
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

// unknown records values that are known only after Resolve, except in fields that hold a plain number or
// boolean.
func (c *consent) unknown(n *node, path string) {
	if n.later && (strings.HasPrefix(path, "setup") || strings.HasPrefix(path, "inject") ||
		strings.HasPrefix(path, "public.access")) {
		c.add(path, "uses a value that is unknown until the parameters are set")
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
		c.add("public.access.nodeShell", "makes the candidate root on the nodes")
	}
	c.rules("public.access.rules", "the candidate", a.Rules)
	for _, ns := range a.Namespaces {
		if !c.own[ns] {
			c.add("public.access.namespaces",
				"makes the candidate an admin of namespace %s, which the scenario does not create", ns)
		}
	}
	if w := a.Workload; w != nil && !c.own[w.Namespace] {
		c.add("public.access.workload", "lets the candidate change %s %s in namespace %s, and therefore run any code there",
			w.Kind, w.Name, w.Namespace)
	}
	for _, ns := range a.Read {
		if !c.own[ns] {
			c.add("public.access.read", "lets the candidate read namespace %s, which the scenario does not create", ns)
		}
	}
}

// protected reports whether the namespace belongs to the cluster, or may belong to it because its name contains an
// expression.
func protected(ns string) bool {
	return strings.HasPrefix(ns, "kube-") || strings.HasPrefix(ns, "gpu-fault") || strings.Contains(ns, "${")
}

// dangerous are verbs that allow privilege escalation.
var dangerous = []string{"escalate", "bind", "impersonate"}

// rules records cluster-wide permissions.
func (c *consent) rules(where, who string, rules []rbacv1.PolicyRule) {
	for _, r := range rules {
		reads := !slices.ContainsFunc(r.Verbs,
			func(v string) bool { return !slices.Contains([]string{"get", "list", "watch"}, v) })
		what := strings.Join(append(slices.Clone(r.Resources), r.NonResourceURLs...), ", ")
		switch {
		case slices.Contains(r.Verbs, "*") && slices.Contains(r.Resources, "*"):
			c.add(where, "allows %s to do anything in the whole cluster", who)
		case slices.ContainsFunc(r.Verbs, func(v string) bool { return slices.Contains(dangerous, v) }):
			c.add(where, "allows %s to %s %s, and therefore to gain any permission", who, strings.Join(r.Verbs, ", "), what)
		case slices.ContainsFunc(r.Resources,
			func(v string) bool { return v == "*" || strings.HasPrefix(v, "secrets") }):
			c.add(where, "allows %s to %s %s in the whole cluster, including all Secrets", who,
				strings.Join(r.Verbs, ", "), what)
		case !reads:
			c.add(where, "allows %s to %s %s in the whole cluster", who, strings.Join(r.Verbs, ", "), what)
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
			c.add(where, "writes XID %s to the kernel log of %s; health monitors may drain or reboot the node",
				s.XID.Codes, s.XID.Node)
		case s.Runtime != nil:
			c.add(where, "breaks the containerd configuration (%s) on %s", s.Runtime.Mode, s.Runtime.Node)
		case s.Firewall != nil:
			what := "its pods' traffic to or from"
			if s.Firewall.Drop == "outgoing" {
				what = "its own traffic to"
			}
			c.add(where, "adds a firewall rule on %s that drops %s TCP port %d on any host",
				s.Firewall.Node, what, s.Firewall.Port)
		case s.Device != nil:
			c.add(where, "makes GPU %s on %s unhealthy, so that new pods do not get it; autoscalers may replace the "+
				"node",
				s.Device.GPU, s.Device.Node)
		case s.CUDA != nil:
			if ns := s.CUDA.Workload.Namespace; !c.own[ns] {
				c.add(where, "injects CUDA errors into %s in namespace %s, which the scenario does not create",
					s.CUDA.Workload.Name, ns)
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
			c.add(where, "grants role %s in the whole cluster to the subjects of %s", r, name)
		}
	case "ClusterRole":
		c.rules(where, "subjects with "+name, policyRules(object["rules"]))
	case "Role":
		for _, r := range policyRules(object["rules"]) {
			if slices.ContainsFunc(r.Verbs, func(v string) bool { return slices.Contains(dangerous, v) }) {
				c.add(where, "allows subjects with %s to %s %s", name, strings.Join(r.Verbs, ", "),
					strings.Join(r.Resources, ", "))
			}
		}
	}
}

// place records objects with a cluster-wide effect, and objects in namespaces that the scenario does not create.
func (c *consent) place(where string, ref Ref) {
	name := ref.Kind + "/" + ref.Name
	switch {
	case strings.Contains(ref.Kind, "${"):
		c.add(where, "changes an object whose kind is unknown until the parameters are set")
	case slices.Contains([]string{"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration",
		"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
		"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "APIService", "CustomResourceDefinition",
		"CertificateSigningRequest"}, ref.Kind):
		c.add(where, "changes %s, which affects the whole cluster", name)
	case ref.Kind == "Node":
		c.add(where, "changes %s", name)
	case ref.Namespace != "" && !c.own[ref.Namespace]:
		c.add(where, "changes %s in namespace %s, which the scenario does not create", name, ref.Namespace)
	}
}

func (c *consent) patch(where string, p *Patch) {
	c.place(where, p.Object)
	name := p.Object.Kind + "/" + p.Object.Name
	if slices.Contains([]string{"ClusterRole", "ClusterRoleBinding"}, p.Object.Kind) {
		c.add(where, "changes %s", name)
	}
	c.inside(where, name, p.Merge)
	c.inside(where, name, p.JSON)
	for _, operation := range p.JSON { // the path may contain the key: /spec/template/spec/hostNetwork
		o, _ := operation.(map[string]any)
		if path, is := o["path"].(string); is {
			c.key(where, name, path[strings.LastIndexByte(path, '/')+1:], o["value"])
		}
	}
}

// inside searches the whole manifest for dangerous keys, so that it covers every kind of workload.
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

// key records a manifest key with a dangerous value.
func (c *consent) key(where, name, key string, value any) {
	yes := value == true
	if text, is := value.(string); is {
		yes = strings.Contains(text, "${")
	}
	switch key {
	case "hostPath":
		path, _ := value.(map[string]any)
		c.add(where, "mounts host files (hostPath %v) in %s", cmp.Or(path["path"], any("?")), name)
	case "hostNetwork", "hostPID", "hostIPC":
		if yes {
			c.add(where, "uses host namespaces (%s) in %s", key, name)
		}
	case "privileged":
		if yes {
			c.add(where, "runs a privileged container in %s", name)
		}
	case "add":
		if more, is := value.([]any); is && len(more) > 0 {
			c.add(where, "runs a container with capabilities %v in %s", more, name)
		}
	case "pod-security.kubernetes.io/enforce":
		if value == "privileged" || yes {
			c.add(where, "allows privileged pods in %s", name)
		}
	case "roleRef":
		role, _ := value.(map[string]any)
		if r, _ := role["name"].(string); strings.HasPrefix(name, "RoleBinding/") &&
			(r == "cluster-admin" || strings.HasPrefix(r, "system:") || strings.Contains(r, "${")) {
			c.add(where, "grants role %s to the subjects of %s", r, name)
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
		// This is not a boolean but, for example, an expression, so assume the worst.
		return []rbacv1.PolicyRule{{Verbs: []string{"*"}, Resources: []string{"*"}}}
	}
	return rules
}

func (c *consent) checks(path string, checks []Check) {
	for i, check := range checks {
		where := fmt.Sprintf("%s[%d]", path, i)
		for _, more := range check.With {
			c.secrets(where, more.Kind, more.Namespace)
		}
		switch {
		case check.Object != nil:
			c.secrets(where, check.Object.Kind, check.Object.Namespace)
		case check.Objects != nil:
			c.secrets(where, check.Objects.Kind, check.Objects.Namespace)
		case check.Exec != nil && !c.own[check.Exec.Namespace]:
			c.add(where, "runs a command in pods of namespace %s, which the scenario does not create",
				check.Exec.Namespace)
		case check.Logs != nil && !c.own[check.Logs.Namespace]:
			c.add(where, "reads logs in namespace %s, which the scenario does not create", check.Logs.Namespace)
		case check.HTTP != nil && strings.Contains(check.HTTP.URL, "169.254."):
			c.add(where, "sends a request to %s, which cloud providers use to serve node credentials", check.HTTP.URL)
		case check.Probe != nil:
			c.object(where+".probe", check.Probe.Pod)
			if check.Probe.Peer != nil {
				c.object(where+".probe.peer", check.Probe.Peer)
			}
		}
	}
}

func (c *consent) secrets(where, kind, ns string) {
	if kind == "Secret" && !c.own[ns] {
		c.add(where, "reads Secrets in %s", cmp.Or(ns, "all namespaces"))
	}
}
