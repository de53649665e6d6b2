package collect

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func helmSecret(t *testing.T, namespace, release, chart string, revision int) *corev1.Secret {
	t.Helper()
	record, err := json.Marshal(map[string]any{
		"name": release, "namespace": namespace, "version": revision, "info": map[string]any{"status": "deployed"},
		"chart": map[string]any{
			"metadata":  map[string]any{"name": chart, "version": "v26.7.0", "appVersion": "v26.7.0"},
			"templates": []any{map[string]any{"data": "x"}},
		},
		"config": map[string]any{
			"driver": map[string]any{"enabled": false}, "ngc": map[string]any{"apiKey": "hush"}, "replicas": 3,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	if _, err := w.Write(record); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("sh.helm.release.v1.%s.v%d", release, revision),
			Labels: map[string]string{"owner": "helm", "status": "deployed"},
		},
		Type: helmType,
		Data: map[string][]byte{"release": []byte(base64.StdEncoding.EncodeToString(zipped.Bytes()))},
	}
}

// TestHelmReleases verifies that the collected releases contain what doctor requires to print Helm values for the
// installed chart.
func TestHelmReleases(t *testing.T) {
	t.Parallel()
	broken := helmSecret(t, "gpu-operator", "broken", "x", 1)
	broken.Data["release"] = []byte("%%%")
	cluster, _ := connected(append(aCluster(),
		helmSecret(t, "gpu-operator", "gpu-operator", "gpu-operator", 1),
		helmSecret(t, "gpu-operator", "gpu-operator", "gpu-operator", 2),
		helmSecret(t, "web", "shop", "wordpress", 1), broken)...)
	s := collected(t, cluster)
	if len(s.HelmReleases) != 1 {
		t.Fatalf("releases are %+v", s.HelmReleases)
	}
	r := s.HelmReleases[0]
	if r.Name != "gpu-operator" || r.Revision != 2 || r.ChartVersion != "v26.7.0" || r.Status != "deployed" ||
		r.Values["replicas"] != int64(3) {
		t.Errorf("the release is %+v", r)
	}
	if strings.Contains(fmt.Sprint(r.Values), "hush") {
		t.Errorf("a key came through: %v", r.Values)
	}
	if got := why(s, "helm/gpu-operator/"+broken.Name); !strings.Contains(got, "base64") {
		t.Errorf("a damaged release: %q", got)
	}
}

func FuzzHelm(f *testing.F) {
	f.Add([]byte("eyJuYW1lIjoiYSJ9"))
	f.Add([]byte("H4sIAAAAAAAA/w=="))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _ = decodeHelm(&corev1.Secret{Type: helmType, Data: map[string][]byte{"release": data}})
	})
}
