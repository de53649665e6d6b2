package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The rows of the matrix are the requests that change something, and no others: a step that is not recognized is never
// killed at.
func TestStepsAreTheRequestsThatChangeSomething(t *testing.T) {
	t.Parallel()
	const record = `{"kind":"ConfigMap","data":{"run.json":"{\"id\":\"xid-1\",\"phase\":\"Applying\",\"steps\":[]}"}}`
	const shim = `{"kind":"ConfigMap","metadata":{"name":"gpu-fault-cuda-1"},"binaryData":{"state":"R1BVRkFVTFQ="}}`
	for _, c := range []struct{ method, path, body, want string }{
		{http.MethodGet, "/api/v1/namespaces/gpu-fault/pods/p", "", ""},
		{http.MethodGet, "/api/v1/namespaces/gpu-fault/pods/p/exec?command=sh", "", "exec"},
		{http.MethodPost, "/api/v1/namespaces/gpu-fault/pods/p/exec?command=sh", "", "exec"}, // SPDY
		{http.MethodPost, "/api/v1/namespaces", "{}", "create namespace"},
		{http.MethodPost, "/api/v1/namespaces/gpu-fault/pods", "{}", "create debug pod"},
		{http.MethodPost, "/api/v1/namespaces/gpu-fault/pods?dryRun=All", "{}", ""},
		{http.MethodDelete, "/api/v1/namespaces/gpu-fault/pods/p", "{}", "delete debug pod"},
		{http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "{}", ""},
		{http.MethodPost, "/apis/coordination.k8s.io/v1/namespaces/gpu-fault/leases", "{}", "create lock"},
		{http.MethodPut, "/apis/coordination.k8s.io/v1/namespaces/gpu-fault/leases/l", "{}", ""}, // the heartbeat
		{http.MethodPatch, "/apis/batch/v1/namespaces/gpu-fault/jobs/j", "{}", "patch expiry job"},
		{http.MethodPost, "/api/v1/namespaces/default/events", "{}", "create event"},
		{http.MethodPut, "/api/v1/namespaces/gpu-fault/configmaps/xid-1", record, "save record (Applying)"},
		// protobuf
		{
			http.MethodPut, "/api/v1/namespaces/gpu-fault/configmaps/xid-1",
			"k8s\x00\x0arun.json\x12" + `{"id":"xid-1","phase":"Proven"}`, "save record (Proven)",
		},
		{http.MethodDelete, "/api/v1/namespaces/gpu-fault/configmaps/xid-1", "{}", "delete record"},
		{http.MethodPost, "/api/v1/namespaces/app/configmaps", shim, "create configmap"},
		{http.MethodPut, "/api/v1/namespaces/app/configmaps/gpu-fault-cuda-1", shim, "save configmap"},
		{http.MethodDelete, "/api/v1/namespaces/app/configmaps/gpu-fault-cuda-1", "{}", "delete configmap"},
		{http.MethodPatch, "/apis/apps/v1/namespaces/app/deployments/train", "[]", "patch deployment"},
		{http.MethodPatch, "/apis/apps/v1/namespaces/app/deployments/train?dryRun=All", "[]", ""},
		{http.MethodPatch, "/api/v1/namespaces/app/pods/train-1", "{}", "patch pod"},
		{http.MethodPatch, "/api/v1/nodes/n/status", "{}", "patch nodes"},
		{http.MethodGet, "/version", "", ""},
	} {
		r := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
		got, err := step(r)
		if err != nil || got != c.want {
			t.Errorf("%s %s is the step %q (%v), wanted %q", c.method, c.path, got, err, c.want)
		}
		if body, _ := io.ReadAll(r.Body); string(body) != c.body {
			t.Errorf("%s %s: the API server would get %q", c.method, c.path, body)
		}
	}
}
