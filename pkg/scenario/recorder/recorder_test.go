package recorder

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// buffer is a file that several write and read.
type buffer struct {
	mu  sync.Mutex
	all bytes.Buffer
	err error
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return 0, b.err
	}
	return b.all.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}

// lines returns the requests that were written.
func (b *buffer) lines(t *testing.T) []Line {
	t.Helper()
	read, err := Read(strings.NewReader(header + b.String()))
	if err != nil {
		t.Fatal(err)
	}
	return read.Lines
}

// proxied returns a client through a proxy in front of an API server.
func proxied(t *testing.T, api http.HandlerFunc, out io.Writer) (*rest.Config, chan error) {
	t.Helper()
	server := httptest.NewTLSServer(api)
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	candidate := &rest.Config{
		Host: server.URL + "/behind/rancher", BearerToken: "candidates-token",
		TLSClientConfig: rest.TLSClientConfig{CAData: ca},
	}
	proxy, err := New(candidate, "team-a", out)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- proxy.Serve(ctx, listener) }()
	t.Cleanup(func() { cancel(); <-done })
	text, err := proxy.Kubeconfig(listener.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "candidates-token") {
		t.Error("the candidate's kubeconfig goes around the recorder")
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	return config, done
}

func get(t *testing.T, config *rest.Config, method, path, body string) (int, string, http.Header) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), method, config.Host+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text), response.Header
}

// A request goes through as the candidate's, whole and under the API server's own path; of it only what was asked for
// is written.
func TestProxyPassesOnAndWritesNoSecrets(t *testing.T) {
	t.Parallel()
	out := &buffer{}
	config, _ := proxied(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if r.Header.Get("Authorization") != "Bearer candidates-token" ||
			!strings.HasPrefix(r.URL.Path, "/behind/rancher/api") {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = fmt.Fprintf(w, "answer with hunter2 to %s", body)
	}, out)
	manifest := `{"metadata":{"name":"db","namespace":"a"},"data":{"password":"aHVudGVyMg=="}}`
	status, text, _ := get(t, config, http.MethodPost, "/api/v1/namespaces/a/secrets?dryRun=All&fieldManager=x",
		manifest)
	if status != 200 || text != "answer with hunter2 to "+manifest {
		t.Errorf("%d %q", status, text)
	}
	_, _, _ = get(t, config, http.MethodGet,
		"/api/v1/namespaces/a/pods/p/exec?command=curl&command=-H&command=Authorization:+Bearer+0123456789abcdef0123&command=http://x",
		"")
	lines := out.lines(t)
	if len(lines) != 2 {
		t.Fatalf("%q", out)
	}
	if l := lines[0]; l.Verb != "create" || l.Resource != "secrets" || l.Name != "db" || l.Namespace != "a" ||
		l.Status != 200 || !l.DryRun || l.Time.IsZero() {
		t.Errorf("%+v", l)
	}
	if l := lines[1]; l.Subresource != "exec" ||
		!strings.Contains(strings.Join(l.Command, " "), "curl -H Authorization: Bearer REDACTED") {
		t.Errorf("%+v", l)
	}
	for _, secret := range []string{"hunter2", "aHVudGVy", "candidates-token", config.BearerToken, "0123456789abcdef"} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("%q in the transcript: %s", secret, out)
		}
	}
}

// Others on the machine cannot use it, and it says what it is.
func TestProxyIsForItsCandidateOnly(t *testing.T) {
	t.Parallel()
	out := &buffer{}
	config, _ := proxied(t, func(http.ResponseWriter, *http.Request) { t.Error("somebody got through") }, out)
	for _, token := range []string{"", "candidates-token", "x"} {
		other := rest.CopyConfig(config)
		other.BearerToken = token
		status, text, _ := get(t, other, http.MethodGet, "/api/v1/nodes", "")
		if status != http.StatusUnauthorized || !strings.Contains(text, "use the kubeconfig") {
			t.Errorf("%d %q", status, text)
		}
	}
}

// A token that ended, and an API server that is away, are told, and are in the transcript.
func TestProxyWhenItCannot(t *testing.T) {
	t.Parallel()
	out := &buffer{}
	config, _ := proxied(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
		out)
	if status, _, header := get(t, config, http.MethodGet, "/api/v1/nodes", ""); status != 401 ||
		!strings.Contains(header.Get("Warning"), "has expired") {
		t.Errorf("%d %v", status, header)
	}
	away := &buffer{}
	proxy, err := New(&rest.Config{Host: "https://127.0.0.1:1", BearerToken: "t"}, "team-a", away)
	if err != nil {
		t.Fatal(err)
	}
	recorded := httptest.NewRecorder()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/nodes", nil)
	request.Header.Set("Authorization", "Bearer "+proxy.token)
	proxy.handler(nil).ServeHTTP(recorded, request)
	if recorded.Code != http.StatusBadGateway ||
		!strings.Contains(recorded.Body.String(), "cannot reach the API server") ||
		!strings.Contains(away.String(), `"status":0`) {
		t.Errorf("%d %s %s", recorded.Code, recorded.Body, away)
	}
	if _, err := New(&rest.Config{Host: "https://a b:1"}, "team-a", out); err == nil ||
		!strings.Contains(err.Error(), "invalid address of the API server") {
		t.Error(err)
	}
}

// A transcript with holes would be unfair: the recorder ends when it cannot write.
func TestProxyEndsWhenItCannotWrite(t *testing.T) {
	t.Parallel()
	config, done := proxied(t, func(http.ResponseWriter, *http.Request) {}, &buffer{err: errors.New("disk full")})
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	if response, err := client.Get(config.Host + "/api/v1/nodes"); err == nil { // it may be answered or not
		_ = response.Body.Close()
	}
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "disk full") {
			t.Error(err)
		}
		done <- nil
	case <-time.After(20 * time.Second):
		t.Error("it goes on")
	}
}

// Requests are named as RBAC names them.
func TestLineOf(t *testing.T) {
	t.Parallel()
	for request, want := range map[string]Line{
		"GET /api/v1/nodes":        {Verb: "list", Resource: "nodes"},
		"GET /api/v1/nodes/n":      {Verb: "get", Resource: "nodes", Name: "n"},
		"GET /api/v1/namespaces":   {Verb: "list", Resource: "namespaces"},
		"GET /api/v1/namespaces/a": {Verb: "get", Resource: "namespaces", Name: "a"},
		"PUT /api/v1/namespaces/a/finalize": {
			Verb: "update", Resource: "namespaces", Name: "a", Subresource: "finalize",
		},
		"GET /api/v1/namespaces/a/pods?watch=true": {Verb: "watch", Resource: "pods", Namespace: "a"},
		"GET /api/v1/watch/namespaces/a/pods":      {Verb: "watch", Resource: "pods", Namespace: "a"},
		"GET /api/v1/namespaces/a/pods/p/log": {
			Verb: "get", Resource: "pods", Namespace: "a", Name: "p", Subresource: "log",
		},
		"POST /api/v1/namespaces/a/pods/p/eviction": {
			Verb: "create", Resource: "pods", Namespace: "a", Name: "p", Subresource: "eviction",
		},
		"POST /api/v1/namespaces/a/pods/p/exec?command=sh&command=-c&command=ls&container=c": {
			Verb: "create", Resource: "pods", Namespace: "a", Name: "p", Subresource: "exec",
			Command: []string{"sh", "-c", "ls"}, Container: "c",
		},
		"PATCH /apis/apps/v1/namespaces/a/deployments/web/scale": {
			Verb: "patch", Group: "apps", Resource: "deployments", Namespace: "a", Name: "web", Subresource: "scale",
		},
		"DELETE /apis/apps/v1/namespaces/a/deployments?labelSelector=app%3Dx": {
			Verb: "deletecollection", Group: "apps", Resource: "deployments", Namespace: "a", Labels: "app=x",
		},
		"DELETE /apis/rbac.authorization.k8s.io/v1/clusterrolebindings/b?dryRun=All": {
			Verb: "delete", Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings", Name: "b",
			DryRun: true,
		},
		"GET /api/v1/namespaces/a/events?fieldSelector=involvedObject.name%3Dweb": {
			Verb: "list", Resource: "events", Namespace: "a", Fields: "involvedObject.name=web",
		},
		"GET /apis":            {Verb: "get", Path: "/apis"},
		"GET /apis/apps/v1":    {Verb: "get", Path: "/apis/apps/v1"},
		"GET /api/v1":          {Verb: "get", Path: "/api/v1"},
		"GET /openapi/v3?x=y":  {Verb: "get", Path: "/openapi/v3"},
		"GET /":                {Verb: "get", Path: "/"},
		"OPTIONS /api/v1/pods": {Verb: "options", Resource: "pods"},
	} {
		method, path, _ := strings.Cut(request, " ")
		if diff := cmp.Diff(want, lineOf(httptest.NewRequestWithContext(t.Context(), method, path, nil))); diff != "" {
			t.Errorf("%s: %s", request, diff)
		}
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/pods", nil)
	r.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
	r.Header.Set("Impersonate-User", "system:serviceaccount:a:b")
	if got := lineOf(r); !got.Table || got.As != "system:serviceaccount:a:b" {
		t.Errorf("%+v", got)
	}
	r = httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1/namespaces/a/pods",
		strings.NewReader(`{"metadata":{"generateName":"p-"}}`))
	r.Header.Set("Content-Type", "application/json")
	if got := lineOf(r); got.Name != "p-*" {
		t.Errorf("%+v", got)
	}
	if rest, err := io.ReadAll(r.Body); err != nil || !strings.Contains(string(rest), "p-") {
		t.Errorf("the body is gone: %q, %v", rest, err)
	}
}

// Whatever is asked for does not break the recorder, and fits into one line.
func FuzzLineOf(f *testing.F) {
	f.Add("GET", "/api/v1/namespaces/a/pods/p/exec", "command=a&command=b", `{"metadata":{"name":"x"}}`)
	f.Add("POST", "/apis/apps/v1//", "labelSelector=%", "")
	f.Add("DELETE", "/api/v1/namespaces/", "", "[")
	f.Add("POST", "/api/v1/namespaces/a/configmaps", "", "k8s\x00\x12\x05\x0a\x03\x0a\x01x")
	f.Fuzz(func(t *testing.T, method, path, query, body string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body))
		r.Method, r.URL.Path, r.URL.RawQuery = method, path, query
		r.Header.Set("Content-Type", "application/json")
		line := lineOf(r)
		line.Time = time.Unix(0, 0)
		text, err := json.Marshal(line)
		if err != nil || bytes.ContainsRune(text, '\n') {
			t.Errorf("%q %v", text, err)
		}
		if read, err := Read(strings.NewReader(header + string(text) + "\n")); method != "" &&
			(err != nil || len(read.Lines) != 1) {
			t.Errorf("%s cannot be read again: %v", text, err)
		}
		if rest, err := io.ReadAll(r.Body); err != nil || string(rest) != body {
			t.Errorf("the body was changed: %q", rest)
		}
	})
}

// The first look that could have told is found; a table of everything is none, nor is what was refused.
func TestFirstRelevant(t *testing.T) {
	t.Parallel()
	at := func(second int, l Line) Line {
		l.Time = time.Date(2026, 1, 1, 0, 0, second, 0, time.UTC)
		if l.Status == 0 {
			l.Status = 200
		}
		return l
	}
	all := []Line{
		at(1, Line{Verb: "get", Path: "/apis"}),
		at(2, Line{Verb: "list", Resource: "deployments", Table: true}),
		at(3, Line{Verb: "get", Resource: "deployments", Name: "web", Status: 403}),
		at(4, Line{Verb: "get", Resource: "deployments", Name: "website"}),
		at(5, Line{Verb: "list", Resource: "events", Fields: "involvedObject.name=web,involvedObject.kind=Deployment"}),
		at(6, Line{Verb: "get", Resource: "pods", Name: "web-7d4b9-x", Subresource: "log"}),
		at(7, Line{Verb: "get", Resource: "deployments", Name: "web"}),
		at(8, Line{Verb: "list", Resource: "networkpolicies"}),
	}
	answer := func(value string, aliases ...string) scenario.RootCause {
		return scenario.RootCause{Object: scenario.Answer{Value: value, Aliases: aliases}}
	}
	for name, want := range map[string]struct {
		root   scenario.RootCause
		lines  []Line
		second int
	}{
		"events":        {answer("Deployment/web"), all, 5},
		"pods":          {answer("Deployment/web"), all[5:], 6},
		"name":          {answer("Deployment/web"), all[6:], 7},
		"whole list":    {answer("NetworkPolicy/deny"), all, 8},
		"alias":         {answer("ConfigMap/x", "Deployment/a/web"), all[6:], 7},
		"never":         {answer("ConfigMap/x"), all, 0},
		"noop":          {answer("none"), all, 0},
		"empty":         {answer(""), all, 0},
		"another order": {answer("Deployment/web"), []Line{all[6], all[4]}, 5},
	} {
		got := FirstRelevant(want.lines, want.root)
		if want.second == 0 != got.IsZero() || want.second != 0 && got.Second() != want.second {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A report's numbers are those of the candidate's work.
func TestSummarize(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(second int, verb, resource, name, sub string, status int) Line {
		return Line{
			Time: start.Add(time.Duration(second) * time.Second), Verb: verb, Resource: resource, Namespace: "a",
			Name: name, Subresource: sub, Status: status,
		}
	}
	lines := []Line{
		{Time: start.Add(-time.Minute), Verb: "get", Path: "/api"},
		at(0, "list", "pods", "", "", 200), at(10, "get", "pods", "p", "", 200), at(70, "get", "pods", "p", "log", 200),
		at(75, "create", "pods", "p", "exec", 101),
		at(80, "patch", "deployments", "web", "", 403), at(200, "patch", "deployments", "web", "", 200),
		at(90, "create", "selfsubjectaccessreviews", "", "", 201),
	}
	lines[len(lines)-1].Group = "authorization.k8s.io"
	want := Summary{
		Requests: 7, Looks: 5, Changes: 2, Refused: 1, First: start, FirstChange: start.Add(200 * time.Second),
		Last:    start.Add(200 * time.Second),
		Minutes: []Minute{{0, 2, 0}, {1, 3, 1}, {3, 0, 1}},
		Objects: []Count{{"pods a/p", 3, 0}, {"deployments a/web", 0, 2}},
	}
	if diff := cmp.Diff(want, Summarize(lines)); diff != "" {
		t.Error(diff)
	}
	asked := []Asked{
		{"list", "pods", 1, 0, start}, {"get", "pods", 1, 0, start.Add(10 * time.Second)},
		{"log", "pods", 1, 0, start.Add(70 * time.Second)},
		{"exec", "pods", 1, 0, start.Add(75 * time.Second)},
		{"patch", "deployments", 2, 1, start.Add(80 * time.Second)},
		{"create", "selfsubjectaccessreviews.authorization.k8s.io", 1, 0, start.Add(90 * time.Second)},
	}
	if diff := cmp.Diff(asked, Tally(lines)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(Summary{}, Summarize(nil)); diff != "" {
		t.Error(diff)
	}
	var many []Line
	for i := range 30 {
		many = append(many, at(i, "get", "pods", fmt.Sprint("p", i), "", 200))
	}
	if got := Summarize(many); len(got.Objects) != 10 ||
		!slices.IsSortedFunc(got.Objects, func(a, b Count) int { return strings.Compare(a.Object, b.Object) }) {
		t.Errorf("%+v", got.Objects)
	}
}
