package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/recorder"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// desk is a candidate's folder, and an API server that knows them.
type desk struct {
	*testing.T
	folder string
	over   atomic.Bool // the token is no longer valid
	line   *recording
	out    bytes.Buffer
	errOut bytes.Buffer
}

const candidate = "system:serviceaccount:accounts-01234567:engineer"

func newDesk(t *testing.T, user string) *desk {
	t.Helper()
	d := &desk{T: t, folder: t.TempDir()}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case d.over.Load() || r.Header.Get("Authorization") != "Bearer token":
			w.WriteHeader(http.StatusUnauthorized)
			_ = json.NewEncoder(w).Encode(metav1.Status{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Code: http.StatusUnauthorized,
				Reason: metav1.StatusReasonUnauthorized,
			})
		case strings.HasSuffix(r.URL.Path, "/selfsubjectreviews"):
			w.WriteHeader(http.StatusCreated)
			review := authenticationv1.SelfSubjectReview{
				TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "SelfSubjectReview"},
			}
			review.Status.UserInfo.Username = user
			_ = json.NewEncoder(w).Encode(review)
		default:
			_, _ = io.WriteString(w, `{"secret":"hunter2"}`)
		}
	}))
	t.Cleanup(server.Close)
	config := clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"lab": {
			Server: server.URL, CertificateAuthorityData: pem.EncodeToMemory(
				&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw},
			),
		}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"candidate": {Token: "token"}},
		Contexts: map[string]*clientcmdapi.Context{
			"lab": {Cluster: "lab", AuthInfo: "candidate", Namespace: "team-a"},
		},
		CurrentContext: "lab",
	}
	if err := clientcmd.WriteToFile(config, d.file("candidate")); err != nil {
		t.Fatal(err)
	}
	streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &d.out, ErrOut: &d.errOut}
	connection := kube.NewConnection(streams)
	*connection.KubeConfig = d.file("candidate")
	d.line = &recording{
		common: common{connection: connection, streams: streams}, kubeconfig: d.file("recorded"),
		transcript: d.file("transcript"), every: 10 * time.Millisecond,
	}
	return d
}

func (d *desk) file(name string) string { return filepath.Join(d.folder, name) }

// ask is one request of the candidate's, through the recorder.
func (d *desk) ask(path string) {
	d.Helper()
	var config *rest.Config
	err := wait.PollUntilContextTimeout(d.Context(), 5*time.Millisecond, 20*time.Second, true,
		func(context.Context) (bool, error) {
			text, err := os.ReadFile(d.file("recorded"))
			if err == nil && bytes.HasSuffix(text, []byte("\n")) {
				config, err = clientcmd.RESTConfigFromKubeConfig(text)
			}
			return err == nil && config != nil, nil
		})
	if err != nil {
		d.Errorf("the recorded kubeconfig does not come: %v", err)
		return
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		d.Error(err)
		return
	}
	response, err := client.Get(config.Host + path)
	if err != nil {
		d.Error(err)
		return
	}
	_ = response.Body.Close()
}

// From the first request to Ctrl-C: the table has what was asked, the file is nobody else's, and the kubeconfig is
// gone. The second time the transcript goes on.
func TestRecord(t *testing.T) {
	t.Parallel()
	d := newDesk(t, candidate)
	for _, path := range []string{
		"/api/v1/namespaces/team-a/pods/web-0", "/apis/apps/v1/namespaces/team-a/deployments",
	} {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			d.ask(path)
			cancel()
		}()
		if err := d.line.run(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(d.file("recorded")); err == nil {
			t.Error("a kubeconfig that is of no use is left")
		}
	}
	for _, want := range []string{
		"VERB", "get    pods               1          0", "list   deployments.apps   1          0",
	} {
		if !strings.Contains(d.out.String(), want) {
			t.Errorf("%s lacks %q", &d.out, want)
		}
	}
	if said := d.errOut.String(); !strings.Contains(said, "until Ctrl-C") ||
		!strings.Contains(said, "2 requests, including 0 changes") {
		t.Error(said)
	}
	read, err := recorder.ReadFile(d.file("transcript"))
	if err != nil || read.User != candidate || len(read.Lines) != 2 {
		t.Errorf("%+v, %v", read, err)
	}
	if info, err := os.Stat(d.file("transcript")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if text, err := os.ReadFile(d.file("transcript")); err != nil || bytes.Contains(text, []byte("hunter2")) ||
		bytes.Contains(text, []byte("token")) {
		t.Errorf("%s, %v", text, err)
	}
}

// When the token ends, recording does, and it is said why.
func TestRecordEndsWithTheToken(t *testing.T) {
	t.Parallel()
	d := newDesk(t, candidate)
	d.line.format.Output = "json"
	go func() {
		d.ask("/api/v1/nodes")
		d.over.Store(true)
	}()
	if err := d.line.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if said := d.errOut.String(); !strings.Contains(said, "no longer valid") {
		t.Error(said)
	}
	var all recorded
	if err := json.Unmarshal(d.out.Bytes(), &all); err != nil || all.Kind != "TranscriptSummary" || all.Requests != 1 ||
		len(all.Asked) != 1 {
		t.Errorf("%s, %v", &d.out, err)
	}
}

// The trainer's kubeconfig would make the candidate an administrator; what is wrong is said before anything is written.
func TestRecordRefuses(t *testing.T) {
	t.Parallel()
	admin := newDesk(t, "kubernetes-admin")
	gone := newDesk(t, candidate)
	gone.over.Store(true)
	taken := newDesk(t, candidate)
	if err := os.WriteFile(taken.file("transcript"), []byte("my notes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, d := range map[string]*desk{
		"kubeconfig belongs to kubernetes-admin, not to a candidate": admin, "rejected the credentials": gone,
		"is not a transcript": taken,
	} {
		if err := d.line.run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; wanted %q", err, want)
		}
		if _, err := os.Lstat(d.file("recorded")); err == nil {
			t.Errorf("%s: a kubeconfig was written", want)
		}
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"record"}, "--kubeconfig-out FILE"},
		{[]string{"record", "--kubeconfig-out", "x"}, "--transcript FILE"},
		{[]string{"record", "--kubeconfig-out", taken.file("transcript"), "--transcript", "x"}, "exists"},
		{[]string{"grade", "--transcript", taken.file("transcript")}, "is not a valid transcript: line 1"},
		{[]string{"grade", "--transcript", taken.file("none")}, "none"},
	} {
		if _, _, err := command(t, test.args...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("scenario %v: %v; wanted %q", test.args, err, test.want)
		}
	}
}
