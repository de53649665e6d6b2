package check

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

func runs() corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
}

func terminated(code int32) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error"}}
}

func waiting(reason string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
}

func podOf(name string, statuses ...corev1.ContainerStatus) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "a"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: statuses},
	}
}

// apiError is how an API server says no.
func apiError(w http.ResponseWriter, code int, message string) {
	reason := map[int]metav1.StatusReason{
		400: metav1.StatusReasonBadRequest, 404: metav1.StatusReasonNotFound, 500: metav1.StatusReasonInternalError,
	}[code]
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Code: int32(code), Status: metav1.StatusFailure,
		Reason: reason, Message: message,
	})
}

// Logs are read while containers restart and pods go: what is gone is left out, what cannot be read is no empty log.
func TestLogs(t *testing.T) {
	t.Parallel()
	deleted := podOf("old", corev1.ContainerStatus{Name: "main", State: runs()})
	deleted.DeletionTimestamp = new(metav1.Unix(1, 0))
	restarted := corev1.ContainerStatus{
		Name: "main", State: waiting("CrashLoopBackOff"), LastTerminationState: terminated(1), RestartCount: 3,
	}
	first := podOf("p1", corev1.ContainerStatus{Name: "main", State: runs()})
	first.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "init", State: terminated(0)}}
	for name, test := range map[string]struct {
		pods        []corev1.Pod
		logs        scenario.Logs
		answer      map[string]string // of pod/container/previous
		expect, why string
	}{
		"in the order of running": {[]corev1.Pod{
			first, podOf("p0", corev1.ContainerStatus{Name: "main", State: runs()}),
		},
			scenario.Logs{},
			map[string]string{"p1/init/false": "i\n", "p1/main/false": "m\n", "p0/main/false": "o\n"},
			`text == "o\ni\nm"`, ""},
		"one container": {
			[]corev1.Pod{first}, scenario.Logs{Container: "main"}, map[string]string{"p1/main/false": "m\n"},
			`text == "m"`, "",
		},
		"previous": {
			[]corev1.Pod{podOf("p", restarted)}, scenario.Logs{Previous: true},
			map[string]string{"p/main/true": "before"}, `text == "before"`, "",
		},
		"no previous one": {
			[]corev1.Pod{podOf("p", corev1.ContainerStatus{Name: "main", State: runs()})},
			scenario.Logs{Previous: true}, map[string]string{"p/main/false": "now"}, `text == "now"`, "",
		},
		"previous one removed": {
			[]corev1.Pod{podOf("p", restarted)}, scenario.Logs{Previous: true},
			map[string]string{"p/main/true": "!400", "p/main/false": "now"}, `text == "now"`, "",
		},
		"it waits to start": {
			[]corev1.Pod{podOf("p", restarted)}, scenario.Logs{}, map[string]string{"p/main/false": "!400"},
			`text == ""`, "",
		},
		"the pod goes": {
			[]corev1.Pod{podOf("p", restarted), podOf("q", restarted)}, scenario.Logs{},
			map[string]string{"p/main/false": "!404", "q/main/false": "here"}, `text == "here"`, "",
		},
		"the log was removed": {
			[]corev1.Pod{podOf("p", restarted)}, scenario.Logs{},
			map[string]string{"p/main/false": "unable to retrieve container logs for containerd://abc"}, `text == ""`,
			"",
		},
		"the node does not answer": {
			[]corev1.Pod{podOf("p", restarted)}, scenario.Logs{}, map[string]string{"p/main/false": "!500"},
			`text == ""`, "p/main/false",
		},
		"none has begun": {
			[]corev1.Pod{podOf("p", corev1.ContainerStatus{Name: "main", State: waiting("ErrImagePull")})},
			scenario.Logs{}, nil, `text == ""`, "no container has started: pod p is Running: ErrImagePull",
		},
		"it is deleted": {
			[]corev1.Pod{deleted}, scenario.Logs{Labels: "job=train"}, nil, `text == ""`,
			"no pod \"job=train\" found in namespace \"a\"",
		},
		"no such container": {
			[]corev1.Pod{first}, scenario.Logs{Container: "x"}, nil, `text == ""`, `pod p1 has no container "x"`,
		},
		"no text but bytes, cut words": {
			[]corev1.Pod{first}, scenario.Logs{Container: "main"}, map[string]string{"p1/main/false": "ok \xff\n"},
			`text == "ok \ufffd"`, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := server(t, func(w http.ResponseWriter, r *http.Request) {
				pod, isLog := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/a/pods/"), "/log")
				if !isLog {
					w.Header().Set("Content-Type", "application/json")
					_ = json.NewEncoder(w).Encode(
						corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: test.pods},
					)
					return
				}
				key := fmt.Sprintf("%s/%s/%v", pod, r.URL.Query().Get("container"),
					r.URL.Query().Get("previous") == "true")
				text, known := test.answer[key]
				var code int
				switch _, _ = fmt.Sscanf(text, "!%d", &code); {
				case !known:
					t.Errorf("asked for %s", key)
				case code != 0:
					apiError(w, code, key)
				default:
					_, _ = w.Write([]byte(text))
				}
			})
			test.logs.Namespace = "a"
			results, err := c.Run(t.Context(), []scenario.Check{{Logs: &test.logs, Expect: test.expect}})
			if err != nil || results[0].OK != (test.why == "") || !strings.Contains(results[0].Message, test.why) {
				t.Errorf("%+v, %v; wanted %q", results, err, test.why)
			}
		})
	}
}

// A log without end, or of thousands of pods, is read in part: its end, and those of the youngest pods.
func TestLogsAreBounded(t *testing.T) {
	t.Parallel()
	var pods []corev1.Pod
	for i := range 50 {
		p := podOf(fmt.Sprintf("p%02d", i), corev1.ContainerStatus{Name: "main", State: runs()})
		p.CreationTimestamp = metav1.Unix(int64(i), 0)
		pods = append(pods, p)
	}
	var asked atomic.Int32
	c := server(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/log") {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(
				corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: pods},
			)
			return
		}
		asked.Add(1)
		if got := r.URL.Query().Get("limitBytes") + "/" + r.URL.Query().Get("tailLines"); got != "4194304/200" {
			t.Error(got)
		}
		for i := range 2000 {
			_, _ = fmt.Fprintf(w, "line %d of %s %s\n", i, r.URL.Path, strings.Repeat("x", 100))
		}
	})
	seen, err := c.logs(t.Context(), scenario.Logs{Namespace: "a"})
	if err != nil {
		t.Fatal(err)
	}
	text := seen.vars["text"].(string)
	if len(text) > maxText || len(text) < maxText/2 || asked.Load() != maxLogs ||
		!strings.Contains(text, "line 1999 of /api/v1/namespaces/a/pods/p49/") || strings.Contains(text, "p05") {
		t.Errorf("%d bytes of %d logs", len(text), asked.Load())
	}
	if !strings.HasPrefix(text, "line ") {
		t.Errorf("it begins in the middle of a line: %.20s", text)
	}
}

func TestBuffers(t *testing.T) {
	t.Parallel()
	tail, head := &tailBuffer{most: 10}, &headBuffer{most: 10}
	for part := range slices.Chunk([]byte(strings.Repeat("abc\n", 100)), 7) {
		for _, w := range []interface{ Write([]byte) (int, error) }{tail, head} {
			if n, err := w.Write(part); n != len(part) || err != nil {
				t.Fatal(n, err)
			}
		}
		if len(tail.data) > 30 {
			t.Fatalf("%d bytes kept", len(tail.data))
		}
	}
	if tail.String() != "abc\nabc\n" || head.String() != "abc\nabc\nab" {
		t.Errorf("%q %q", tail.String(), head.String())
	}
}

// A debug container shares the processes of a container, and can write to its log: what is read after that proves
// nothing.
func TestLogsThatADebugContainerMayHaveWritten(t *testing.T) {
	t.Parallel()
	ended := func(ago time.Duration) corev1.ContainerState {
		state := terminated(0)
		state.Terminated.FinishedAt = metav1.NewTime(time.Now().Add(-ago))
		state.Terminated.StartedAt = metav1.NewTime(time.Now().Add(-ago - time.Second))
		return state
	}
	for name, test := range map[string]struct {
		state corev1.ContainerState
		since time.Duration
		why   string
	}{
		"runs":                          {runs(), time.Minute, "and grade again later"},
		"runs, whole log":               {runs(), 0, "replace the pod"},
		"ended a moment ago":            {ended(10 * time.Second), time.Hour, "and grade again later"},
		"ended before what is read":     {ended(time.Minute), 15 * time.Second, ""},
		"ended before, but all is read": {ended(time.Hour), 0, "replace the pod"},
		"its image could not be pulled": {waiting("ErrImagePull"), 0, ""},
		"its command could not start":   {terminated(128), 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := podOf("p", corev1.ContainerStatus{Name: "main", State: runs()})
			pod.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{{Name: "debugger", State: test.state}}
			err := untouched([]corev1.Pod{podOf("q"), pod}, test.since)
			if got := fmt.Sprint(err); (err == nil) != (test.why == "") || !strings.Contains(got, test.why) {
				t.Errorf("got %v, expected %q", err, test.why)
			}
		})
	}
}
