package snapshot

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"compress/gzip"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/redact"
)

// Each secret has its own text, so that a test can name the one that came through.
const (
	jwt = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzZWNyZXQifQ.c2lnbmF0dXJl"
	aws = "AKIAIOSFODNN7EXAMPLE"
)

func secretive() *Snapshot {
	spec := corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c",
		Env: []corev1.EnvVar{
			{Name: "NGC_API_KEY", Value: "hush-ngc"}, {Name: "HF_TOKEN", Value: "hush-hf"},
			{Name: "DB_PASSWORD", Value: "hush-db"}, {Name: "awsSecretAccessKey", Value: "hush-aws"},
			{Name: "HTTPS_PROXY", Value: "http://me:hush-proxy@proxy:3128"}, {Name: "X", Value: aws},
			{Name: "CUDA_VISIBLE_DEVICES", Value: "-1"},
			{Name: "TOKEN_FILE", Value: "/var/run/token"},
		},
		Args:    []string{"--api-key", "hush-arg", "--token=hush-flag", "--mig-strategy", "single"},
		Command: []string{"curl", "-H", "Authorization: Bearer hush-bearer-0123456789"},
		LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{HTTPHeaders: []corev1.HTTPHeader{{Name: "X-Auth", Value: "hush-header"}}},
		}},
	}}}
	meta := metav1.ObjectMeta{
		Namespace: "x", Name: "o", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "hush-manager"}},
		Annotations: map[string]string{
			dropped: "hush-applied", "example.com/password": "hush-annotation", "nvidia.com/gpu.driver": "kept",
		},
	}
	config := `version = 2
[plugins."io.containerd.grpc.v1.cri".registry.configs."r.example.com".auth]
  username = "hush-user"
  password = 'hush-pass'
  auth = "hush-auth"
  identitytoken = """
hush-identity
"""
[plugins.x]
  inline = { auth = "hush-inline", other = "kept" }
  [plugins.x.header]
    Authorization = ["Basic hush-basic"]
# the last line
`
	s := &Snapshot{
		Pods: []corev1.Pod{
			{ObjectMeta: meta, Spec: spec, Status: corev1.PodStatus{Message: "GET https://u:hush-status@h/"}},
		},
		DaemonSets: []appsv1.DaemonSet{{
			ObjectMeta: *meta.DeepCopy(),
			Spec:       appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: *spec.DeepCopy()}},
		}},
		Events: []corev1.Event{
			{ObjectMeta: metav1.ObjectMeta{Name: "e"}, Message: "pull: https://r/?token=hush-event&x=1: 401"},
		},
		ConfigMaps: []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Name: "cm"}, Data: map[string]string{
			"token": "hush-cm", "config.yaml": "a: 1\npassword: hush-yaml\nflags: {migStrategy: single}\n",
		}, BinaryData: map[string][]byte{"b": []byte("hush-binary")}}},
		ClusterPolicies: []unstructured.Unstructured{{Object: map[string]any{
			"metadata": map[string]any{
				"name": "cp", "annotations": map[string]any{dropped: "hush-cp-applied"},
				"managedFields": []any{map[string]any{"manager": "hush-cp-manager"}},
			},
			"spec": map[string]any{
				"driver": map[string]any{"env": []any{
					map[string]any{"name": "PROXY_PASSWORD", "value": "hush-cp-env"},
					map[string]any{"name": "CONTAINERD_SOCKET", "value": "/kept.sock"},
				}, "imagePullSecrets": []any{"kept-pull-secret"},
					"licensingConfig": map[string]any{"secretName": "kept-license"}},
				"daemonsets": map[string]any{"tolerations": []any{map[string]any{"key": "kept-toleration"}}},
			},
		}}},
		HelmReleases: []HelmRelease{{Name: "h", Values: map[string]any{
			"ngc": map[string]any{"apiKey": "hush-values", "existingSecret": "kept-existing"},
			"url": "https://a:hush-url@h", "topologyKey": "kept-topology",
		}}},
		Logs: []Log{{
			Namespace: "x", Pod: "p", Container: "c",
			Text: "line\nkey " + jwt +
				"\n-----BEGIN RSA PRIVATE KEY-----\nhush-pem\n-----END RSA PRIVATE KEY-----\nkept-log",
		}},
		Images:  map[string]Image{"i": {Error: "GET https://r/token?access_key=hush-image: 401"}},
		Missing: []Missing{{What: "api/x", Why: "https://a:hush-missing@h", NotStarted: "token=hush-started"}},
		Hosts: map[string]*api.Diagnosis{"n": {
			Runtime: api.Runtime{Instance: &api.Instance{
				Args: []string{"containerd", "--token", "hush-process"},
				CRI: &cri.Info{Config: json.RawMessage(
					`{"registry":{"configs":{"r":{"auth":{"username":"hush-cri-user","password":"hush-cri","auth":""}}},"headers":{"Authorization":["hush-cri-header"]}},"kept":12345678901234567890}`,
				)},
				Files: []api.ConfigFile{{Path: "/etc/c.toml", Data: []byte(config)}},
			}, Decoys: []api.Instance{
				{Files: []api.ConfigFile{{Path: "/etc/d.toml", Data: []byte("auth = 'hush-decoy'\n")}}},
			}},
			Probe: api.Probe{
				Cmdline: "root=/dev/sda k3s_token=hush-cmdline", ToolkitConfig: "password = \"hush-toolkit\"\n",
			},
			Journals:  map[string]string{"kubelet": "Bearer hush-journal-0123456789\n"},
			KernelLog: []api.KernelRecord{{Text: "http://a:hush-kernel@h"}},
		}},
	}
	return s
}

func everything(t *testing.T, s *Snapshot) string {
	t.Helper()
	zipped, err := gzip.NewReader(bytes.NewReader(written(t, s)))
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(zipped)
	if err != nil {
		t.Fatal(err)
	}
	return string(all)
}

// People send bundles to strangers. No secret may be in one, and what doctor concludes from must be.
func TestBundleHasNoSecrets(t *testing.T) {
	t.Parallel()
	s := secretive()
	all := everything(t, s)
	for _, secret := range []string{"hush-", jwt, aws} {
		if at := strings.Index(all, secret); at >= 0 {
			t.Errorf("a secret is in the bundle: %q", all[max(0, at-80):min(len(all), at+60)])
		}
	}
	for _, kept := range []string{
		"CUDA_VISIBLE_DEVICES", `"-1"`, "/var/run/token", "proxy:3128", `"single"`, "kept-pull-secret", "kept-license",
		"kept-toleration", "kept-existing", "kept-topology", "kept-log",
		"/kept.sock", `other = \"kept\"`, "# the last line", "12345678901234567890", "migStrategy: single",
		"nvidia.com/gpu.driver",
	} {
		if !strings.Contains(all, kept) && !strings.Contains(all, strings.ReplaceAll(kept, `\"`, `"`)) {
			t.Errorf("%q was taken for a secret", kept)
		}
	}
	if s.Pods[0].Spec.Containers[0].Env[0].Value != "hush-ngc" || s.Hosts["n"].Runtime.Instance.Files[0].Data == nil {
		t.Error("to write a bundle changed the snapshot")
	}
}

// What a node says reaches a report as well, and what proves a fault.
func TestHostsAndRunsAreRedacted(t *testing.T) {
	t.Parallel()
	s := &Snapshot{
		Runs: []Run{{Summary: "token=hush", Targets: []Target{{Evidence: []RunEvidence{{Text: "token=hush"}}}}}},
		Hosts: map[string]*api.Diagnosis{"n": {
			SMI: "<process_name>train --token hush</process_name>", Info: api.Info{Warnings: []string{"token=hush"}},
			Probe: api.Probe{SMIError: "token=hush", Unread: map[string]string{"journals": "token=hush"}},
		}},
	}
	before := *s.Hosts["n"]
	if all := everything(t, s); strings.Contains(all, "hush") {
		t.Errorf("a secret is in the bundle: %s", all)
	}
	if before.Probe.Unread["journals"] != "token=hush" || s.Runs[0].Targets[0].Evidence[0].Text != "token=hush" {
		t.Error("to write a bundle changed the snapshot")
	}
}

// The report of a live cluster quotes its evidence, too.
func TestRedactIsWhatWriteDoes(t *testing.T) {
	t.Parallel()
	s := secretive()
	Redact(s)
	if everything(t, s) != everything(t, secretive()) {
		t.Error(
			"a redacted snapshot is written otherwise than one that Write redacts: redaction is not the same, or not idempotent",
		)
	}
	if strings.Contains(string(s.Hosts["n"].Runtime.Instance.Files[0].Data), "hush-") {
		t.Error("Redact left a secret in a file of a node")
	}
}

// Pods that share the containers of their template lose its secrets as others do, wherever in the list they stand.
func TestSharedContainersAreRedacted(t *testing.T) {
	shared, own := secretive().Pods[0].Spec, secretive().Pods[0].Spec
	s := &Snapshot{Pods: []corev1.Pod{{Spec: shared}, {Spec: own}, {Spec: shared}}}
	Redact(s)
	for i, pod := range s.Pods {
		text, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "hush-") {
			t.Errorf("pod %d has a secret: %s", i, text)
		}
	}
}

// Findings quote lines of configuration files by number.
func TestRedactedFilesKeepTheirLines(t *testing.T) {
	t.Parallel()
	before := string(secretive().Hosts["n"].Runtime.Instance.Files[0].Data)
	after := redact.Config(before)
	if strings.Count(before, "\n") != strings.Count(after, "\n") || strings.Contains(after, "hush-") {
		t.Errorf("lines moved, or a secret stayed:\n%s", after)
	}
}
