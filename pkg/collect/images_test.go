package collect

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// aRegistry returns a registry with an index, a single image, and a repository that requires a password.
func aRegistry(t *testing.T) string {
	t.Helper()
	in := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		if r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/v2/private/") && password != "hush" {
			w.Header().Set("WWW-Authenticate", "Basic")
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		// As in real registries, the client must present its password.
		if r.URL.Path == "/v2/" && r.Header.Get("Authorization") == "" {
			w.Header().Set("WWW-Authenticate", "Basic")
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		in.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")

	image := func(p v1.Platform) v1.Image {
		config, err := empty.Image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		config = config.DeepCopy()
		config.OS, config.Architecture, config.Variant = p.OS, p.Architecture, p.Variant
		made, err := mutate.ConfigFile(empty.Image, config)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	arm, amd := v1.Platform{OS: "linux", Architecture: "arm64", Variant: "v8"},
		v1.Platform{OS: "linux", Architecture: "amd64"}
	unknown := v1.Platform{OS: "unknown", Architecture: "unknown"}
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: image(arm), Descriptor: v1.Descriptor{Platform: &arm}},
		mutate.IndexAddendum{Add: image(amd), Descriptor: v1.Descriptor{Platform: &amd}},
		mutate.IndexAddendum{Add: image(unknown), Descriptor: v1.Descriptor{Platform: &unknown}})
	ref := func(text string) name.Reference {
		parsed, err := name.ParseReference(host + text)
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	for where, write := range map[string]func(name.Reference) error{
		"/multi:1":  func(r name.Reference) error { return remote.WriteIndex(r, index) },
		"/single:1": func(r name.Reference) error { return remote.Write(r, image(arm)) },
		"/private/x:1": func(r name.Reference) error {
			return remote.Write(r, image(amd), remote.WithAuth(&authn.Basic{Username: "u", Password: "hush"}))
		},
	} {
		if err := write(ref(where)); err != nil {
			t.Fatalf("write %s: %v", where, err)
		}
	}
	return host
}

func dockerConfig(t *testing.T, registries ...string) []byte {
	t.Helper()
	auths := map[string]any{}
	for _, r := range registries {
		auths[r] = map[string]string{"username": "u", "password": "hush"}
	}
	raw, err := json.Marshal(map[string]any{"auths": auths})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestImages covers images for another architecture, which fail only with "exec format error": the registry has the
// details. A registry that does not respond is not an error.
func TestImages(t *testing.T) {
	t.Parallel()
	host := aRegistry(t)
	away := httptest.NewServer(nil)
	away.Close()
	gone := strings.TrimPrefix(away.URL, "http://") + "/x:1"
	refs := []string{
		host + "/multi:1", host + "/single:1", host + "/private/x:1", host + "/none:1", gone, "NOT A REFERENCE",
	}
	got := Images(t.Context(), refs, keychain{}, nil)
	for ref, want := range map[string]string{
		host + "/multi:1": "linux/amd64 linux/arm64/v8", host + "/single:1": "linux/arm64/v8",
	} {
		if text := strings.Join(got[ref].Platforms, " "); text != want || got[ref].Error != "" {
			t.Errorf("%s is for %q (%s), wanted %q", ref, text, got[ref].Error, want)
		}
	}
	for ref, want := range map[string]string{
		host + "/private/x:1": "the registry denied access", host + "/none:1": "not found in the registry",
		gone: "unreachable from here", "NOT A REFERENCE": "could not parse reference",
	} {
		if len(got[ref].Platforms) > 0 || !strings.Contains(got[ref].Error, want) {
			t.Errorf("%s: %+v, wanted %q", ref, got[ref], want)
		}
	}

	keys := keychain{}
	keys.add(dockerConfig(t, "http://"+host+"/private"))
	keys.add([]byte("no JSON"))
	if image := Images(t.Context(), []string{host + "/private/x:1"}, keys, nil)[host+"/private/x:1"]; !slices.Equal(
		image.Platforms, []string{"linux/amd64"},
	) {
		t.Errorf("with the password: %+v", image)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if image := Images(ctx, refs[:1], keys, nil)[refs[0]]; !strings.Contains(image.Error, "canceled") {
		t.Errorf("after Ctrl-C: %+v", image)
	}
}

// TestImagesOfFailingPods verifies that only the pull secrets and images of failing pods are used.
func TestImagesOfFailingPods(t *testing.T) {
	t.Parallel()
	host := aRegistry(t)
	image := func(ref string, change func(*corev1.Pod)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			asking(p)
			p.Spec.Containers[0].Image = host + ref
			p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}, {Name: "gone"}}
			if change != nil {
				change(p)
			}
		}
	}
	cluster, _ := connected(
		gpuNode("n"),
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "pull"},
			Data:       map[string][]byte{corev1.DockerConfigJsonKey: dockerConfig(t, host)},
		},
		pod("team", "works", "n", image("/multi:1", nil)), pod("team", "fails", "n", image("/private/x:1", failing)),
	)
	s, err := Collect(t.Context(), cluster, Options{Clock: clock}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Images) != 1 || len(s.Images[host+"/private/x:1"].Platforms) != 1 {
		t.Errorf("images are %+v", s.Images)
	}
}

// TestKeychain covers the formats of keys in Docker's configuration.
func TestKeychain(t *testing.T) {
	t.Parallel()
	for key, refs := range map[string]map[string]bool{
		"https://index.docker.io/v1/": {"busybox": true, "docker.io/library/busybox": true, "nvcr.io/x/y": false},
		"nvcr.io": {
			"nvcr.io/nvidia/driver:1": true, "evil-nvcr.io/x/y": false, "nvcr.io.evil.com/x/y": false,
		},
		"ghcr.io/team":  {"ghcr.io/team/x": true, "ghcr.io/team2/x": false},
		"*.example.com": {"a.example.com/x": true, "a.b.example.com/x": false, "example.com/x": false},
	} {
		keys := keychain{}
		keys.add(dockerConfig(t, key))
		for text, want := range refs {
			ref, err := name.ParseReference(text)
			if err != nil {
				t.Fatal(err)
			}
			auth, err := keys.Resolve(ref.Context())
			if err != nil || (auth != authn.Anonymous) != want {
				t.Errorf("%s for %s: password given %t (%v), wanted %t", key, text, auth != authn.Anonymous, err, want)
			}
		}
	}
}

func FuzzKeychain(f *testing.F) {
	f.Add([]byte(`{"auths":{"https://*.x/v1/":{"auth":"dTpw"}}}`))
	ref, err := name.ParseReference("nvcr.io/nvidia/driver:1")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(_ *testing.T, data []byte) {
		keys := keychain{}
		keys.add(data)
		_, _ = keys.Resolve(ref.Context())
	})
}
