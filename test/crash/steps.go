package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
)

// words are what a request is about, in the words of the tool.
var words = map[string]string{
	"configmaps": "record", "leases": "lock", "jobs": "expiry job", "pods": "debug pod", "namespaces": "namespace",
	"events":      "event",
	"deployments": "deployment",
}

var verbs = map[string]string{
	http.MethodPost: "create", http.MethodPut: "save", http.MethodPatch: "patch", http.MethodDelete: "delete",
}

// nudge is the patch that makes a kubelet look at a pod of the workload. Nobody patches debug pods.
const nudge = "patch pod"

// runPhase finds how far a run is in the body of a request that saves its record: JSON within JSON, or within protobuf.
var runPhase = regexp.MustCompile(`\\?"phase\\?":\s*\\?"(\w+)`)

// step names the change that a request makes; empty when it makes none. A request that renews a lock is no step either:
// it comes by the clock, not in the course of a run.
func step(r *http.Request) (string, error) {
	resource, subresource := resourceOf(r.URL.Path)
	dry := r.URL.Query().Has("dryRun")
	switch {
	case subresource == "exec":
		return "exec", nil
	case verbs[r.Method] == "", dry, strings.HasSuffix(resource, "reviews"),
		resource == "leases" && r.Method == http.MethodPut:
		return "", nil
	}
	name := verbs[r.Method] + " " + resource
	if word, known := words[resource]; known {
		name = verbs[r.Method] + " " + word
	}
	switch {
	case resource == "pods" && r.Method == http.MethodPatch:
		return nudge, nil
	case strings.Contains(r.URL.Path, "/configmaps/"+cudashim.Name("")):
		return verbs[r.Method] + " configmap", nil // the shim and its state
	}
	if resource == "configmaps" && r.Method != http.MethodDelete {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return "", fmt.Errorf("read the body: %w", err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if found := runPhase.FindSubmatch(body); found != nil {
			name += " (" + string(found[1]) + ")"
		} else if r.Method == http.MethodPost {
			name = "create configmap"
		}
	}
	return name, nil
}

// resourceOf takes apart /api/v1/namespaces/NS/RESOURCE/NAME/SUBRESOURCE, with or without a group and a namespace.
func resourceOf(path string) (resource, subresource string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		parts = parts[3:]
	default:
		return "", ""
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	if len(parts) > 2 {
		subresource = parts[2]
	}
	return parts[0], subresource
}
