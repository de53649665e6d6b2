package exercise

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/access"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/recorder"
)

// at returns a request so long after the exercise was handed over.
func at(after time.Duration, verb, name string) recorder.Line {
	return recorder.Line{
		Time: noon.Add(after), Verb: verb, Group: "apps", Resource: "deployments", Namespace: "harbour", Name: name,
		Status: 200,
	}
}

// A transcript tells the interviewer when the cause was first looked at and when something was changed, in numbers and
// in the timeline; what came after the judgment is not of it, and no point depends on any of it.
func TestGradeWithATranscript(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	trainer, e := w.started(StartOptions{})
	transcript := &recorder.Transcript{Header: recorder.Header{User: access.User(e.Account.ID)}, Lines: []recorder.Line{
		at(time.Minute, "get", "store"), at(2*time.Minute, "get", "page"), at(4*time.Minute, "patch", "page"),
		at(6*time.Minute+time.Second, "get", "page"),
	}}
	w.pass(5 * time.Minute)
	_, err := trainer.GradeRecorded(t.Context(), "", transcript)
	wants(t, err, "2026-05-04T12:06:01Z", "a different clock, or is from another exercise")
	if now, err := trainer.Get(t.Context(), e.ID); err != nil || now.Last() != nil {
		t.Errorf("it was graded all the same: %+v, %v", now, err)
	}
	plain, err := trainer.Grade(t.Context(), "")
	if err != nil || plain.Recorded != nil {
		t.Fatalf("%+v, %v", plain, err)
	}
	w.pass(2 * time.Minute)
	for range 2 { // twice tells the same
		if err := trainer.Retell(t.Context(), plain, transcript); err != nil {
			t.Fatal(err)
		}
	}
	if told := plain.Recorded; told.Look != 2*time.Minute || told.Change != 4*time.Minute || told.Requests != 3 ||
		told.Changes != 1 || told.Later != 1 || len(plain.Timeline) != 8 {
		t.Errorf("%+v %+v", told, plain.Timeline)
	}
	report, err := trainer.GradeRecorded(t.Context(), "", transcript)
	if err != nil || report.Recorded.Requests != 4 || report.Recorded.Later != 0 || report.Score != plain.Score {
		t.Fatalf("%+v, %v", report, err)
	}
	var moments []string
	for _, m := range report.Timeline {
		moments = append(moments, m.What)
	}
	if told := strings.Join(moments, "; "); !strings.Contains(
		told, "handed to the candidate; first request about the root cause; first change; graded",
	) {
		t.Error(told)
	}
	if last, err := trainer.Get(t.Context(), e.ID); err != nil || last.Last().Recorded == nil {
		t.Errorf("the stored report has lost it: %v", err)
	}
}

// What is not of this exercise's candidate and time is refused, and it is said which is meant.
func TestTranscriptOfAnotherExercise(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	trainer, e := w.started(StartOptions{})
	w.pass(5 * time.Minute)
	for want, transcript := range map[string]*recorder.Transcript{
		"the user in the transcript is alice": {Header: recorder.Header{User: "alice"}},
		"accounts-":                           {Header: recorder.Header{User: access.User("c-another")}},
		"a request at 2026-05-04T11:5": {
			Header: recorder.Header{User: access.User(e.Account.ID)},
			Lines:  []recorder.Line{at(-2*time.Minute, "get", "page")},
		},
		"a request at 2026-05-04T12:07:": {
			Header: recorder.Header{User: access.User(e.Account.ID)},
			Lines:  []recorder.Line{at(7*time.Minute, "get", "page")},
		},
	} {
		_, err := trainer.GradeRecorded(t.Context(), "", transcript)
		wants(t, err, want, e.ID, "another exercise")
	}
	nobody := &recorder.Transcript{Header: recorder.Header{User: access.User(e.Account.ID)}}
	if report, err := trainer.GradeRecorded(t.Context(), "", nobody); err != nil || report.Recorded.Look != 0 ||
		report.Recorded.Requests != 0 {
		t.Errorf("a candidate who did nothing: %+v, %v", report, err)
	}
}

// A program that is recorded gets a kubeconfig that leads through the recorder, and what it asks is in a file of its
// own.
func TestAgentIsRecorded(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer candidates-token" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer server.Close()
	text, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {
			Server: server.URL, CertificateAuthorityData: pem.EncodeToMemory(
				&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw},
			),
		}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {Token: "candidates-token"}},
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
	})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	trainer, e := w.started(StartOptions{})
	e.Kubeconfig = text
	folder := t.TempDir()
	kubeconfig, stop, err := trainer.record(t.Context(), e, folder, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Get(config.Host + "/api/v1/namespaces/harbour/pods")
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	transcript, err := stop()
	if err != nil || len(transcript.Lines) != 1 || transcript.Lines[0].Status != 200 ||
		transcript.User != access.User(e.Account.ID) {
		t.Fatalf("%+v, %v", transcript, err)
	}
	if report, err := trainer.GradeRecorded(t.Context(), "", transcript); err != nil || report.Recorded.Requests != 1 {
		t.Errorf("%+v, %v", report, err)
	}
	if _, err := os.Stat(filepath.Join(folder, "missing-settings-"+e.ID+".jsonl")); err != nil {
		t.Error(err)
	}
}
