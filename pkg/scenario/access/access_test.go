package access

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

func onWorkload(kind, namespace string) scenario.Access {
	return scenario.Access{
		Workload: &scenario.Ref{APIVersion: "apps/v1", Kind: kind, Namespace: namespace, Name: "server"},
	}
}

// In a namespace of others the candidate views, and changes the one Deployment by its name: there is no role with more.
func TestWorkloadOfOthers(t *testing.T) {
	t.Parallel()
	var roles []string
	for _, o := range Objects("c-1", "ledger", onWorkload("Deployment", "prod")) {
		if o.GetNamespace() != "prod" {
			continue
		}
		switch o.GetKind() {
		case "RoleBinding":
			role, _, _ := unstructured.NestedString(o.Object, "roleRef", "kind")
			name, _, _ := unstructured.NestedString(o.Object, "roleRef", "name")
			if role == "Role" {
				name = "its own"
			}
			roles = append(roles, role+" "+name)
		case "Role":
			rules, _, _ := unstructured.NestedSlice(o.Object, "rules")
			for _, each := range rules {
				rule, _ := each.(map[string]any)
				if names, _, _ := unstructured.NestedStringSlice(rule, "resourceNames"); !slices.Equal(
					names, []string{"server"},
				) {
					t.Errorf("a rule for more than the Deployment: %v", rule)
				}
			}
		}
	}
	if slices.Sort(roles); !slices.Equal(roles, []string{"ClusterRole view", "Role its own"}) {
		t.Errorf("%q", roles)
	}
	needs := Permissions("c-1", onWorkload("Deployment", "prod"))
	for _, resource := range []string{"roles", "rolebindings"} {
		if !slices.ContainsFunc(needs, func(p fault.Permission) bool {
			return p.Resource == resource && p.Namespace == "prod" && p.Verb == "create"
		}) {
			t.Errorf("%s are not asked for", resource)
		}
	}
}

// A pack cannot ask for what opens the ledger, and is told what to ask for instead.
func TestValidate(t *testing.T) {
	t.Parallel()
	rule := func(groups, resources, verbs string, names ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{
			APIGroups: strings.Split(groups, ","), Resources: strings.Split(resources, ","),
			Verbs: strings.Split(verbs, ","), ResourceNames: names,
		}
	}
	for name, at := range map[string]struct {
		a    scenario.Access
		want string // empty: it is fine
	}{
		"fine":   {scenario.Access{Namespaces: []string{"a"}, Read: []string{"kube-system"}}, ""},
		"none":   {scenario.Access{}, "at least one"},
		"empty":  {scenario.Access{Namespaces: []string{""}}, "namespace must not be empty"},
		"ledger": {scenario.Access{Namespaces: []string{"a", "ledger"}}, "contains the ledger"},
		"ledger read": {
			scenario.Access{Namespaces: []string{"a"}, Read: []string{"ledger"}}, "contains the ledger",
		},
		"system":           {scenario.Access{Namespaces: []string{"kube-system"}}, "move the namespace to access.read"},
		"a workload":       {onWorkload("Deployment", "prod"), ""},
		"its ledger":       {onWorkload("Deployment", "ledger"), "contains the ledger"},
		"its system":       {onWorkload("Deployment", "kube-system"), "move the namespace to access.read"},
		"its kind":         {onWorkload("DaemonSet", "prod"), "must be a Deployment"},
		"all":              {with(rule("*", "*", "*")), "privilege escalation"},
		"read all":         {with(rule("*", "*", "get,list,watch")), "gives read access"},
		"secrets":          {with(rule("", "secrets", "list")), "gives read access"},
		"a Secret":         {with(rule("", "secrets", "get", "one")), ""},
		"list of one":      {with(rule("", "secrets", "list", "one")), "gives read access"},
		"logs":             {with(rule("", "pods/log", "get")), "gives read access"},
		"events":           {with(rule("events.k8s.io", "events", "list")), "gives read access"},
		"jobs":             {with(rule("batch", "jobs", "list")), "gives read access"},
		"pods":             {with(rule("", "pods", "create")), "allows creating"},
		"exec":             {with(rule("", "pods/exec", "create")), "allows creating"},
		"deployments":      {with(rule("apps", "deployments", "patch")), "allows creating"},
		"read deployments": {with(rule("apps", "deployments", "get,list")), ""},
		"escalate":         {with(rule(rbacv1.GroupName, "clusterroles", "escalate")), "privilege escalation"},
		"impersonate":      {with(rule("", "users", "impersonate")), "privilege escalation"},
		"bind":             {with(rule(rbacv1.GroupName, "clusterroles", "bind")), "resourceNames"},
		"bind edit": {
			with(rule(rbacv1.GroupName, "clusterroles", "bind", "gpu-jobs", "edit")), "resourceNames",
		},
		"bind one":   {with(rule(rbacv1.GroupName, "clusterroles", "bind", "gpu-jobs")), ""},
		"bindings":   {with(rule(rbacv1.GroupName, "clusterrolebindings", "create,delete,get")), ""},
		"cordon":     {with(rule("", "nodes", "patch,update")), ""},
		"kubelets":   {with(rule("", "nodes/proxy", "get")), "nodes/proxy"},
		"tokens":     {with(rule("", "serviceaccounts/token", "create")), "token for any"},
		"namespaces": {with(rule("", "namespaces", "patch")), "Pod Security"},
		"webhooks": {
			with(rule("admissionregistration.k8s.io", "validatingwebhookconfigurations", "create")), "webhooks",
		},
		"custom resources":  {with(rule("monitoring.coreos.com", "servicemonitors", "*")), "privilege escalation"},
		"custom resources2": {with(rule("monitoring.coreos.com", "servicemonitors", "get,list,patch")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := Validate(at.a, "ledger")
			if (err == nil) != (at.want == "") || err != nil && !strings.Contains(err.Error(), at.want) {
				t.Errorf("%v, want %q", err, at.want)
			}
		})
	}
}

func with(rules ...rbacv1.PolicyRule) scenario.Access {
	return scenario.Access{Namespaces: []string{"a"}, Rules: rules}
}

// Names of what a candidate sees tell nothing of the exercise, and two exercises have not the same.
func TestObjectsAreNeutral(t *testing.T) {
	t.Parallel()
	a := scenario.Access{Namespaces: []string{"a", "b", "a", "ledger"}, Read: []string{"b", "c", "ledger"}}
	objects := Objects("gpu-fault-scenario-1", "ledger", a)
	bound := map[string]int{}
	for _, o := range objects {
		text, err := o.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{
			"gpu", "fault", "scenario", "candidate", "ledger", "creationTimestamp", "status",
		} {
			if strings.Contains(string(text), word) {
				t.Errorf("%q in %s", word, text)
			}
		}
		if o.GetKind() == "RoleBinding" {
			bound[o.GetNamespace()]++
		}
	}
	if bound["a"] != 2 || bound["b"] != 2 || bound["c"] != 1 || len(bound) != 3 {
		t.Errorf("bindings %v", bound)
	}
	other, _ := Account("x")
	if mine, _ := Account("gpu-fault-scenario-1"); mine == other ||
		!strings.HasPrefix(User("x"), "system:serviceaccount:"+other+":") {
		t.Error("two exercises share an account")
	}
	seen := map[string]bool{}
	for _, o := range slices.Concat(objects, Objects("2", "ledger", a)) {
		name := o.GetKind() + "/" + o.GetNamespace() + "/" + o.GetName()
		if seen[name] {
			t.Errorf("%s is there twice", name)
		}
		seen[name] = true
	}
}

// A candidate who may create pods is not root on the nodes, unless the exercise is about nodes.
func TestSecure(t *testing.T) {
	t.Parallel()
	space := func(name, level string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{
			Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name}},
		}
		if level != "" {
			o.SetLabels(map[string]string{enforce: level, "team": "x"})
		}
		return o
	}
	for name, at := range map[string]struct {
		shell bool
		want  string
	}{
		"no shell": {false, "baseline baseline restricted - privileged"},
		"shell":    {true, "privileged baseline restricted - privileged"},
	} {
		objects := []*unstructured.Unstructured{
			space("a", ""), space("b", privileged), space("c", restricted), {
				Object: map[string]any{
					"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a"},
				},
			}, space("others", privileged),
		}
		Secure(objects, scenario.Access{Namespaces: []string{"a", "b", "c"}, NodeShell: at.shell})
		var got []string
		for _, o := range objects {
			level := o.GetLabels()[enforce]
			if level == "" {
				level = "-"
			}
			got = append(got, level)
		}
		if strings.Join(got, " ") != at.want || objects[1].GetLabels()["team"] != "x" {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// tokens answers as an API server that gives tokens of a certain life; seconds is what was asked for.
func tokens(life func(asked time.Duration) time.Duration, err error) (*fake.Clientset, *int64) {
	client, seconds := fake.NewClientset(), new(int64)
	client.PrependReactor("create", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "token" {
			return false, nil, nil
		}
		request := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenRequest)
		*seconds = *request.Spec.ExpirationSeconds
		ends := time.Now().Add(life(time.Duration(*seconds) * time.Second))
		return true, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{
			Token: "candidates-token", ExpirationTimestamp: metav1.NewTime(ends),
		}}, err
	})
	return client, seconds
}

// A token ends with the time box, or it is said why not.
func TestTokenLife(t *testing.T) {
	t.Parallel()
	same := func(d time.Duration) time.Duration { return d }
	always := func(d time.Duration) func(time.Duration) time.Duration {
		return func(time.Duration) time.Duration { return d }
	}
	accounts := schema.GroupResource{Resource: "serviceaccounts"}
	for name, at := range map[string]struct {
		box       time.Duration
		life      func(time.Duration) time.Duration
		fails     error
		asked     time.Duration
		note, err string
	}{
		"as asked":     {45 * time.Minute, same, nil, 45 * time.Minute, "", ""},
		"short box":    {2 * time.Minute, same, nil, 10 * time.Minute, "the minimum lifetime", ""},
		"shortened":    {8 * time.Hour, always(time.Hour), nil, 8 * time.Hour, "before the time box", ""},
		"lengthened":   {time.Hour, always(24 * time.Hour), nil, time.Hour, "after the time box", ""},
		"not a year's": {3607 * time.Second, same, nil, 3608 * time.Second, "", ""},
		"over":         {-time.Minute, same, nil, 0, "", "time box ended"},
		"forbidden": {
			time.Hour, same, apierrors.NewForbidden(accounts, "x", errors.New("no")), time.Hour, "",
			"serviceaccounts/token",
		},
		"no account":       {time.Hour, same, apierrors.NewNotFound(accounts, "x"), time.Hour, "", "end the exercise"},
		"no API server":    {time.Hour, same, errors.New("refused"), time.Hour, "", "refused"},
		"box of ten hours": {10 * time.Hour, same, nil, 10 * time.Hour, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, seconds := tokens(at.life, at.fails)
			issued, err := Kubeconfig(t.Context(), client, &rest.Config{Host: "https://x:6443"}, "id",
				scenario.Access{}, time.Now().Add(at.box))
			if (err == nil) != (at.err == "") || err != nil && !strings.Contains(err.Error(), at.err) {
				t.Fatalf("error %v", err)
			}
			if (issued.Note == "") != (at.note == "") || !strings.Contains(issued.Note, at.note) {
				t.Errorf("note %q", issued.Note)
			}
			if got := time.Duration(*seconds) * time.Second; (got-at.asked).Abs() > time.Second ||
				got == 3607*time.Second {
				t.Errorf("asked for %v", got)
			}
		})
	}
}

// The candidate's kubeconfig reaches the same API server, and has nothing by which the trainer is known.
func TestKubeconfigHasNothingOfTheTrainers(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ca")
	if err := os.WriteFile(file, []byte("the CA"), 0o600); err != nil {
		t.Fatal(err)
	}
	proxy, err := url.Parse("http://proxy:3128")
	if err != nil {
		t.Fatal(err)
	}
	config := &rest.Config{
		Host: "https://10.0.0.1:6443/behind/rancher", BearerToken: "trainers-token", Username: "trainers-name",
		Password: "trainers-password",
		TLSClientConfig: rest.TLSClientConfig{
			CAFile: file, CertData: []byte("trainers-cert"), KeyData: []byte("trainers-key"), ServerName: "kubernetes",
		},
		Impersonate: rest.ImpersonationConfig{UserName: "trainers-other"}, Proxy: http.ProxyURL(proxy),
	}
	client, _ := tokens(func(d time.Duration) time.Duration { return d }, nil)
	issued, err := Kubeconfig(t.Context(), client, config, "id", scenario.Access{Namespaces: []string{"team-a", "b"}},
		time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(issued.Kubeconfig), "trainers") {
		t.Errorf("%s", issued.Kubeconfig)
	}
	loaded, err := clientcmd.NewClientConfigFromBytes(issued.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	got, err := loaded.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	through, err := got.Proxy(nil)
	if err != nil || through.Host != "proxy:3128" {
		t.Errorf("proxy %v, %v", through, err)
	}
	namespace, _, err := loaded.Namespace()
	if err != nil || namespace != "team-a" || got.Host != config.Host || string(got.CAData) != "the CA" ||
		got.ServerName != "kubernetes" || got.BearerToken != "candidates-token" {
		t.Errorf("%s %+v %v", namespace, got, err)
	}
	config.CAFile = file + "gone"
	if _, err := Kubeconfig(
		context.Background(), client, config, "id", scenario.Access{}, time.Now().Add(time.Hour),
	); err == nil || !strings.Contains(err.Error(), "CA") {
		t.Error(err)
	}
}
