package image

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/helper"
)

func execute(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, talk bytes.Buffer
	cmd := NewCommand(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &talk})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&out)
	cmd.SetErr(&talk)
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	return out.String(), talk.String(), err
}

// needsHelpers skips where `make build` has not run.
func needsHelpers(t *testing.T) {
	t.Helper()
	if len(helper.Architectures()) == 0 {
		t.Skip("no helper was built: make build")
	}
}

// pluginProgram returns the path of a program that counts as the plugin: a static program for Linux, with the string
// that each build of the plugin contains.
func pluginProgram(t *testing.T) string {
	t.Helper()
	program, err := helper.For(helper.Architectures()[0])
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "plugin")
	marked := slices.Concat(program, []byte("github.com/gpu-fault/kubectl-gpu-fault/plugin/"))
	if err := os.WriteFile(path, marked, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Each is refused before anything was written or sent, and says what to do.
func TestRefused(t *testing.T) {
	t.Parallel()
	needsHelpers(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	program := pluginProgram(t)
	for line, want := range map[string]string{
		"foo":                            `unknown command "foo"`,
		"build a b":                      "takes only one directory",
		"build " + dir:                   "is not empty: remove it or specify another one",
		"build " + file:                  "cannot write to directory",
		"push":                           "requires one repository, as in:",
		"push node":                      `invalid repository "node": must include a registry, such as registry.example.com/tools/node`,
		"push a.example/n@sha256:00":     "must not have a digest",
		"push https://a.example/n":       "must not have a scheme",
		"push A.example/N":               "invalid image name",
		"push a.example/n --timeout 0s":  "invalid value 0s for --timeout: must be greater than 0s",
		"push a.example/n -o foo":        "foo",
		"save":                           "requires one name",
		"save n":                         "specify -f FILE",
		"save n -f " + dir:               "is a directory: specify a file in it",
		"save n -f " + file:              "already exists: pass --force to overwrite it",
		"save n -f " + file + "/x":       "save to",
		"save n -f " + dir + "/no/x":     "save to",
		"save n -f x --format tar":       `invalid value "tar" for --format: supported values: oci, docker`,
		"save n -f x --format docker":    "requires --platform linux/amd64",
		"save n -f x --platform l/amd64": "--platform requires --format docker",
		"save n -f x --format docker --platform linux/s390x":     `--platform: invalid platform "linux/s390x": supported values: linux/amd64`,
		"save n:mine -f x --format docker --platform linux/s390": "omit the tag",
		"save N -f x": "invalid image name",
		"save n:mine -f x --with-plugin=" + program:     "the image is recognized only by its tag: omit :mine",
		"save n -f x --with-plugin=" + file:             "file is not a Linux program",
		"push a.example/n --with-plugin=" + dir + "/no": "--with-plugin: open",
	} {
		stdout, _, err := execute(t, strings.Fields(line)...)
		if err == nil || !strings.Contains(err.Error(), want) || stdout != "" {
			t.Errorf("%s: error %v, wanted %q; stdout %q", line, err, want, stdout)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left: %v %v", left, err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "mine" {
		t.Errorf("the file was changed: %q %v", got, err)
	}
	if _, err := os.Stat("x"); err == nil {
		t.Error("a file was written")
	}
}

// stdout is what --image takes, and nothing else.
func TestPush(t *testing.T) {
	t.Parallel()
	needsHelpers(t)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	repository := strings.TrimPrefix(server.URL, "http://") + "/tools/node"
	built, _, err := execute(t, "build", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var want report
	if err := json.Unmarshal([]byte(built), &want); err != nil || want.Kind != "DebugImage" ||
		len(want.Platforms) != 2 {
		t.Fatalf("%s %v", built, err)
	}
	pushed, talk, err := execute(t, "push", repository)
	if err != nil || pushed != repository+":"+want.Tag+"@"+want.Digest+"\n" ||
		!strings.Contains(talk, "for linux/arm64") {
		t.Errorf("stdout %q, stderr %q, %v", pushed, talk, err)
	}
	again, _, err := execute(t, "push", repository+":prod", "-o", "name")
	if err != nil || again != repository+":prod@"+want.Digest+"\n" {
		t.Errorf("stdout %q, %v", again, err)
	}
}

// guarded returns a registry as most are: it takes a token, which another address gives to who is logged in there.
// https://distribution.github.io/distribution/spec/auth/token/
func guarded(t *testing.T, user, password string) (host string) {
	t.Helper()
	open := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	var server *httptest.Server
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, secret, _ := r.BasicAuth()
		switch {
		case r.URL.Path == "/token" && name == user && secret == password:
			_, _ = io.WriteString(w, `{"token":"for-`+user+`"}`)
		case r.URL.Path != "/token" && r.Header.Get("Authorization") == "Bearer for-"+user:
			open.ServeHTTP(w, r)
		default:
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+server.URL+`/token",service="test"`)
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// The credentials are those of `docker login`. Without them, and with wrong ones, it says how to get some.
func TestPushWithCredentials(t *testing.T) {
	needsHelpers(t)
	host := guarded(t, "alice", "secret")
	for name, test := range map[string]struct{ login, want string }{
		"logged in":      {"alice:secret", ""},
		"wrong password": {"alice:wrong", "docker login " + host},
		"nobody":         {"", "docker login " + host},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("DOCKER_CONFIG", dir)
			t.Setenv("REGISTRY_AUTH_FILE", filepath.Join(dir, "none"))
			t.Setenv("XDG_RUNTIME_DIR", dir)
			auths := map[string]any{}
			if test.login != "" {
				auths[host] = map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte(test.login))}
			}
			config, err := json.Marshal(map[string]any{"auths": auths})
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
				t.Fatal(err)
			}
			pushed, _, err := execute(t, "push", host+"/tools/node")
			if test.want == "" && (err != nil || !strings.HasPrefix(pushed, host+"/tools/node:")) {
				t.Errorf("stdout %q, %v", pushed, err)
			}
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || pushed != "" ||
				strings.Contains(err.Error(), "wrong")) {
				t.Errorf("error %v, wanted %q; stdout %q", err, test.want, pushed)
			}
		})
	}
}

func TestSave(t *testing.T) {
	t.Parallel()
	needsHelpers(t)
	file := filepath.Join(t.TempDir(), "image.tar")
	named, talk, err := execute(t, "save", "node", "-f", file)
	if err != nil || !strings.HasPrefix(named, "docker.io/library/node:gpu-fault-") ||
		!strings.Contains(talk, "ctr -n k8s.io images import") {
		t.Fatalf("stdout %q, stderr %q, %v", named, talk, err)
	}
	saved, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	streamed, _, err := execute(t, "save", "node", "-f", "-")
	if err != nil || streamed != string(saved) {
		t.Errorf("standard output has %d bytes, the file %d (%v)", len(streamed), len(saved), err)
	}
	pinned, _, err := execute(t, "save", "example.com/node:prod", "-f", file, "--force")
	if err != nil || !strings.HasPrefix(pinned, "example.com/node@sha256:") {
		t.Errorf("with a tag of one's own: %q %v", pinned, err)
	}
	docker, _, err := execute(t, "save", "node", "-f", file, "--force", "--format", "docker", "--platform",
		"linux/arm64")
	if err != nil || docker != named {
		t.Errorf("docker archive: %q %v", docker, err)
	}
	folder := filepath.Join(t.TempDir(), "layout")
	if _, _, err := execute(t, "build", folder); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(folder, "oci-layout")); err != nil {
		t.Error(err)
	}
}

// On Windows and macOS, the running program cannot be the one in the image.
func TestThisProgramMustBeForLinux(t *testing.T) {
	t.Parallel()
	c := content{plugin: thisProgram}
	if _, err := c.file("windows"); err == nil || !strings.Contains(err.Error(), "specify --with-plugin=FILE") {
		t.Errorf("on Windows: %v", err)
	}
	if file, err := c.file("linux"); err != nil || file == "" {
		t.Errorf("on Linux: %q %v", file, err)
	}
}

// An image with the plugin says so in its tag, and has two layers for the plugin's architecture.
func TestBuildWithPlugin(t *testing.T) {
	t.Parallel()
	needsHelpers(t)
	program := pluginProgram(t)
	var plain, with report
	for into, args := range map[*report][]string{
		&plain: {"build", "-o", "json"}, &with: {"build", "--with-plugin=" + program, "-o", "json"},
	} {
		stdout, _, err := execute(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(stdout), into); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.HasPrefix(with.Tag, plain.Tag+"-") || with.bytes() <= plain.bytes() {
		t.Errorf("with the plugin: %+v; without: %+v", with, plain)
	}
}
