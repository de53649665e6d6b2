package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func fakeHelper(arch string) ([]byte, error) {
	if arch == "s390x" {
		return nil, errors.New("no helper for s390x")
	}
	return []byte("the helper for " + arch), nil
}

func made(t *testing.T) *Image {
	t.Helper()
	img, err := New(fakeHelper, []string{"amd64", "arm64"})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// The digest is how a client knows its image, so it must not depend on when, where or how often it is made.
func TestSameEachTime(t *testing.T) {
	t.Parallel()
	first, second := made(t), made(t)
	// Of Go 1.26's compress/gzip: another release of Go may compress differently, and makes another helper anyway
	const want = "sha256:4beceb8c6da4def2aa964fa0d9923d7c5ab822503ab6ff373c5c2af99aae596a"
	if first.Digest != second.Digest || first.Digest.String() != want {
		t.Errorf("digests %s and %s, wanted %s: it is to be the same on every machine", first.Digest, second.Digest,
			want)
	}
	if _, err := New(fakeHelper, []string{"amd64", "s390x"}); err == nil ||
		!strings.Contains(err.Error(), "build the image for linux/s390x: no helper") {
		t.Errorf("without a helper: %v", err)
	}
}

// What is in it: the helper, executable, and a /tmp.
func TestContent(t *testing.T) {
	t.Parallel()
	for _, p := range made(t).Platforms {
		config, err := p.Image.ConfigFile()
		if err != nil || "linux/"+config.Architecture != p.Name || config.OS != "linux" ||
			config.Config.Entrypoint[0] != "/gpu-fault-node" || !config.Created.IsZero() {
			t.Errorf("%+v %v", config, err)
		}
		layers, err := p.Image.Layers()
		if err != nil || len(layers) != 1 {
			t.Fatal(layers, err)
		}
		files, err := layers[0].Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for r := tar.NewReader(files); ; {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			data, readErr := io.ReadAll(r)
			if err != nil || readErr != nil {
				t.Fatal(err, readErr)
			}
			got = append(got, fmt.Sprintf("%s %o %s", h.Name, h.Mode, data))
		}
		if want := "gpu-fault-node 755 the helper for " + config.Architecture +
			"|tmp/ 1777 "; strings.Join(got, "|") != want {
			t.Errorf("files %q, wanted %q", got, want)
		}
	}
}

func TestHasHelper(t *testing.T) {
	t.Parallel()
	img := made(t)
	digest, other := img.Digest.String(), "sha256:"+strings.Repeat("0", 64)
	for reference, want := range map[string]string{
		"busybox":                               "no",
		"registry.example.com:5000/a/b:1.2":     "no",
		"registry.example.com/a@" + digest:      "yes",
		"registry.example.com/a:prod@" + digest: "yes",
		"registry.example.com/a:" + img.Tag:     "yes",
		"a:" + img.Tag + "@" + digest:           "yes",
		"a@" + other:                            "no", // somebody's own image, pinned
		"a:" + img.Tag + "@" + other:            "other",
		"a:gpu-fault-000000000000":              "other",
		"a:gpu-fault-000000000000@" + other:     "other",
		// Who tags what is of no interest where the digest says it all
		"a:gpu-fault-000000000000@" + digest:       "yes",
		"a:gpu-fault-0000000000001":                "no",
		"gpu-fault-000000000000":                   "no",
		"registry:5000/gpu-fault-000000000000/a:b": "no",
		"": "no",
	} {
		asked := false
		has, err := HasHelper(reference, func() (*Image, error) { asked = true; return img, nil })
		got := map[bool]string{true: "yes", false: "no"}[has]
		if errors.As(err, new(*OtherError)) {
			got = "other"
		} else if err != nil {
			t.Errorf("%s: %v", reference, err)
		}
		if got != want {
			t.Errorf("%s: %s, wanted %s", reference, got, want)
		}
		if reference == "busybox" && asked {
			t.Error("the image is made for an image that cannot be ours: that takes time at each use")
		}
	}
}

func FuzzHasHelper(f *testing.F) {
	img, err := New(fakeHelper, []string{"amd64"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("a:" + img.Tag)
	f.Add("a@" + img.Digest.String())
	f.Fuzz(func(t *testing.T, reference string) {
		has, err := HasHelper(reference, func() (*Image, error) { return img, nil })
		if has &&
			(err != nil ||
				!strings.HasSuffix(reference, img.Tag) && !strings.HasSuffix(reference, img.Digest.String())) {
			t.Errorf("%q was taken for ours: %v", reference, err)
		}
	})
}

// registryWith returns a registry in memory, behind a door.
func registryWith(t *testing.T, door func(http.ResponseWriter, *http.Request) bool) string {
	t.Helper()
	rooms := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if door == nil || door(w, r) {
			rooms.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// What a node pulls is what was made, for both platforms.
func TestPush(t *testing.T) {
	t.Parallel()
	img := made(t)
	host := registryWith(t, nil)
	for _, text := range []string{host + "/tools/node", host + "/tools/node:prod"} {
		tag, err := img.ParseTag(text, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := img.Push(t.Context(), tag, authn.DefaultKeychain); err != nil {
			t.Fatal(err)
		}
		pulled, err := remote.Index(tag)
		if err != nil {
			t.Fatal(err)
		}
		if digest, err := pulled.Digest(); err != nil || digest != img.Digest {
			t.Errorf("%s: %s %v", text, digest, err)
		}
		for _, arch := range []string{"amd64", "arm64"} {
			single, err := remote.Image(tag, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
			if err != nil {
				t.Fatal(err)
			}
			if err := validate.Image(single); err != nil {
				t.Errorf("%s for %s: %v", text, arch, err)
			}
		}
	}
}

// An error says what the registry said, and what to do.
func TestPushRefused(t *testing.T) {
	t.Parallel()
	img := made(t)
	answer := func(code int) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/v2/" && code != http.StatusUnauthorized {
				return true
			}
			w.WriteHeader(code)
			return false
		}
	}
	closed := httptest.NewServer(nil)
	gone := strings.TrimPrefix(closed.URL, "http://")
	closed.Close()
	for name, test := range map[string]struct{ host, want string }{
		"not logged in": {registryWith(t, answer(http.StatusUnauthorized)), "; log in to the registry: docker login"},
		"no right":      {registryWith(t, answer(http.StatusForbidden)), "is not allowed to push to tools/node"},
		"no repository": {registryWith(t, answer(http.StatusNotFound)), "require you to create the repository first"},
		"not there":     {gone, "and that it is reachable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tag, err := img.ParseTag(test.host+"/tools/node", false)
			if err != nil {
				t.Fatal(err)
			}
			err = img.Push(t.Context(), tag, authn.NewMultiKeychain())
			if err == nil || !strings.Contains(err.Error(), "push "+tag.Name()) ||
				!strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, wanted %q", err, test.want)
			}
		})
	}
}

func TestPushStops(t *testing.T) {
	t.Parallel()
	img := made(t)
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	host := registryWith(t, func(_ http.ResponseWriter, r *http.Request) bool {
		cancel(enough)
		<-r.Context().Done()
		return false
	})
	tag, err := img.ParseTag(host+"/tools/node", false)
	if err != nil {
		t.Fatal(err)
	}
	if err := img.Push(ctx, tag, authn.NewMultiKeychain()); !errors.Is(err, enough) {
		t.Errorf("error %v", err)
	}
}

func TestParseTag(t *testing.T) {
	t.Parallel()
	img := made(t)
	for text, want := range map[string]string{
		"node":                                 "docker.io/library/node:" + img.Tag,
		"example.com/a/b":                      "example.com/a/b:" + img.Tag,
		"example.com:5000/a/b:c":               "example.com:5000/a/b:c",
		"example.com/a@" + img.Digest.String(): "! must not have a digest",
		"Example.com/A":                        "! invalid image name",
		"https://example.com/a":                "! invalid image name",
		"":                                     "! invalid image name",
		"example.com/a:b c":                    "! invalid image name",
	} {
		tag, err := img.ParseTag(text, false)
		part, wrong := strings.CutPrefix(want, "! ")
		switch {
		case wrong && (err == nil || !strings.Contains(err.Error(), part)):
			t.Errorf("%q: %v, wanted %q", text, err, part)
		case !wrong && (err != nil || CRIName(tag) != want):
			t.Errorf("%q: %s %v, wanted %q", text, tag, err, want)
		}
	}
}

func TestArchives(t *testing.T) {
	t.Parallel()
	img := made(t)
	tag, err := name.NewTag("example.com/tools/node:prod")
	if err != nil {
		t.Fatal(err)
	}
	var once, again bytes.Buffer
	if err := errors.Join(img.WriteOCI(&once, tag), img.WriteOCI(&again, tag)); err != nil {
		t.Fatal(err)
	}
	if sha256.Sum256(once.Bytes()) != sha256.Sum256(again.Bytes()) {
		t.Error("two archives of the same image differ")
	}
	dir := unpack(t, &once)
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	var names []string
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range manifest.Manifests {
		names = append(names, m.Annotations["io.containerd.image.name"],
			m.Annotations["org.opencontainers.image.ref.name"])
		if m.Digest != img.Digest {
			t.Errorf("the archive has %s", m.Digest)
		}
	}
	want := []string{
		"example.com/tools/node:prod", "prod", "example.com/tools/node@" + img.Digest.String(), img.Digest.Hex,
	}
	if strings.Join(names, " ") != strings.Join(want, " ") {
		t.Errorf("names %q, wanted %q", names, want)
	}

	p, err := img.Platform("linux/arm64")
	if err != nil {
		t.Fatal(err)
	}
	var docker bytes.Buffer
	if err := p.WriteDocker(&docker, tag); err != nil {
		t.Fatal(err)
	}
	loaded, err := tarball.Image(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(docker.Bytes())), nil }, &tag,
	)
	if err != nil {
		t.Fatal(err)
	}
	if config, err := loaded.ConfigFile(); err != nil || config.Architecture != "arm64" {
		t.Errorf("%+v %v", config, err)
	}
	if _, err := img.Platform("linux/s390x"); err == nil ||
		!strings.Contains(err.Error(), "supported values: linux/amd64, linux/arm64") {
		t.Errorf("another platform: %v", err)
	}
}

func unpack(t *testing.T, archive io.Reader) string {
	t.Helper()
	dir := t.TempDir()
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if err == io.EOF {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.FromSlash(h.Name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o644)); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(h.Name, ".json") && !json.Valid(data) {
			t.Errorf("%s is no JSON: %s", h.Name, data)
		}
	}
}
