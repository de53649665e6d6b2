package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

func urlCheck(expect string) scenario.Check {
	return scenario.Check{
		HTTP: &scenario.HTTP{Namespace: "a", URL: "http://u/", Labels: scenario.Labels{"team": "x"}}, Expect: expect,
	}
}

// What programs say of an answer, with the words of the real ones: the status, none, or that they are not there.
func TestAsks(t *testing.T) {
	t.Parallel()
	type said struct {
		out, err string
		code     int
		failure  error
	}
	notThere := said{failure: errors.New(`exec: "wget": executable file not found in $PATH`)}
	for name, test := range map[string]struct {
		wgetS, wget, getS, get said
		expect, why            string
	}{
		"busybox": {
			wgetS: said{out: "hi", err: "  HTTP/1.1 200 OK\n  Date: x\n"}, expect: `status == 200 && body == "hi"`,
		},
		"a redirection": {
			wgetS: said{out: "hi", err: "  HTTP/1.1 302 Found\n  HTTP/1.1 200 OK\n"}, expect: `status == 200`,
		},
		"an error": {
			wgetS:  said{err: "wget: server returned error: HTTP/1.1 404 Not Found", code: 1},
			expect: `status == 404 && body == ""`,
		},
		"GNU's": {
			wgetS: said{err: "  HTTP/1.1 503 Service Unavailable\n", code: 8}, expect: `status == 503`,
		},
		"no answer": {wgetS: said{err: "wget: download timed out", code: 1}, expect: `status == 0`},
		"no name":   {wgetS: said{err: "wget: bad address 'u'", code: 1}, expect: `status == 0`},
		"not before -S": {
			wgetS: said{err: "wget: invalid option -- 'S'\nUsage: wget", code: 1}, wget: said{out: "hi"},
			expect: `status == 200 && body == "hi"`,
		},
		"a crash": {
			wgetS: said{code: 139}, wget: said{code: 139}, getS: said{out: "hi", err: "  HTTP/1.1 500 Oh\n", code: 1},
			expect: `status == 500`,
		},
		"an old get": {
			wgetS: notThere, wget: notThere, getS: said{err: `get: Get "-S": unsupported protocol scheme ""`, code: 1},
			get: said{out: "hi"}, expect: `status == 200`,
		},
		"nothing there": {
			wgetS: notThere, wget: notThere, getS: notThere, get: notThere, expect: `true`,
			why: "image registry.k8s.io/e2e-test-images/busybox:1.36.1-1@sha256:a9155b13325b2abef48e71de77bb8ac015412a566829f621d06bfae5c699b1b9 does not contain wget",
		},
		"the node is away": {
			wgetS: said{failure: errors.New("error dialing backend: no route to host")}, expect: `status == 0`,
			why: "no route to host",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			w.node(func(int, time.Duration) corev1.PodStatus { return phase(corev1.PodRunning, runs()) })
			w.execer = commands(func(_ context.Context, _, command string, streams debugpod.Streams) error {
				all := map[string]said{
					"wget -q -S -T 5 -O - http://u/": test.wgetS, "wget -q -T 5 -O - http://u/": test.wget,
					"get -S -T 5 http://u/": test.getS, "get http://u/": test.get,
				}
				s, known := all[command]
				if !known {
					t.Errorf("ran %s", command)
				}
				_, _ = io.WriteString(streams.Out, s.out)
				_, _ = io.WriteString(streams.Err, s.err)
				if s.code != 0 {
					return exitCode(s.code)
				}
				return s.failure
			})
			r := w.one(t, urlCheck(test.expect))
			if r.OK != (test.why == "") || !strings.Contains(r.Message, test.why) {
				t.Errorf("%+v", r)
			}
			if left := w.left(t); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// The pod that asks: its start does not count; it is kept for all looks, made anew when somebody deletes it, and no way
// round it passes a check: when it does not run, nothing is known of the URL.
func TestAskingPod(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status     func(n int, age time.Duration) corev1.PodStatus
		exec       func(w *world, pod string, n int) error // n: which run
		within     time.Duration
		ok         bool
		made       int
		took       time.Duration // about
		why, never string
	}{
		"starts slowly": {
			status: func(_ int, age time.Duration) corev1.PodStatus {
				if age < 40*time.Second {
					return phase(corev1.PodPending, waiting("ContainerCreating"))
				}
				return phase(corev1.PodRunning, runs())
			},
			exec: func(_ *world, _ string, n int) error {
				if n < 5 { // and the URL takes a moment to answer
					return exitCode(1)
				}
				return nil
			},
			within: 10 * time.Second, ok: true, made: 1, took: 43 * time.Second,
		},
		"never starts": {
			status: func(int, time.Duration) corev1.PodStatus {
				return phase(corev1.PodPending, waiting("ContainerCreating"))
			},
			made: 1, took: 62 * time.Second, why: "the client pod is not running: Pending: ContainerCreating",
		},
		"no image": {
			status: func(int, time.Duration) corev1.PodStatus {
				return phase(corev1.PodPending, waiting("ImagePullBackOff"))
			},
			within: 5 * time.Second, made: 1, took: 5 * time.Second, why: "ImagePullBackOff",
		},
		"is evicted": {
			status: func(n int, _ time.Duration) corev1.PodStatus {
				if n < 3 {
					return corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}
				}
				return phase(corev1.PodRunning, runs())
			},
			within: 10 * time.Second, ok: true, made: 3, took: time.Second,
		},
		"is deleted": {
			status: func(int, time.Duration) corev1.PodStatus { return phase(corev1.PodRunning, runs()) },
			exec: func(w *world, pod string, n int) error {
				if n == 1 {
					_ = w.pods("a").Delete(context.Background(), pod, metav1.DeleteOptions{})
					return errors.New("pod not found")
				}
				return nil
			},
			within: 10 * time.Second, ok: true, made: 2, took: time.Second,
		},
		"is deleted all the time": {
			status: func(int, time.Duration) corev1.PodStatus { return phase(corev1.PodRunning, runs()) },
			exec: func(w *world, pod string, _ int) error {
				_ = w.pods("a").Delete(context.Background(), pod, metav1.DeleteOptions{})
				return errors.New("pod not found")
			},
			within: 5 * time.Second, took: 6 * time.Second, why: "not found",
		},
		"answers nothing": {
			status: func(int, time.Duration) corev1.PodStatus { return phase(corev1.PodRunning, runs()) },
			made:   1, took: 11 * time.Second, why: "the command timed out",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				made := w.node(test.status)
				var n atomic.Int32
				hold := make(chan struct{})
				defer close(hold)
				w.execer = commands(func(_ context.Context, pod, _ string, _ debugpod.Streams) error {
					now := n.Add(1)
					if name == "answers nothing" { // nor does it notice that nobody waits any more
						<-hold
						return nil
					}
					if test.exec == nil {
						return nil
					}
					return test.exec(w, pod, int(now))
				})
				c := urlCheck(`status == 200`)
				c.Within = scenario.Duration(test.within)
				r := w.one(t, c)
				if r.OK != test.ok || test.made > 0 && len(made()) != test.made ||
					!strings.Contains(r.Message, test.why) || (r.Took-test.took).Abs() > 4*time.Second {
					t.Errorf("%+v; %d pods", r, len(made()))
				}
				if left := w.left(t); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			})
		})
	}
}

// A URL that hangs while the pod lives is no answer; that the resolver is not bounded by wget's timeout is no reason to
// wait for it.
func TestAskHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.node(func(int, time.Duration) corev1.PodStatus { return phase(corev1.PodRunning, runs()) })
		w.execer = commands(func(ctx context.Context, _, command string, _ debugpod.Streams) error {
			if command == "true" {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if r := w.one(t, urlCheck(`status == 0`)); !r.OK || r.Saw != "no response within 5s" ||
			r.Took > 10*time.Second {
			t.Errorf("%+v", r)
		}
	})
}

// A service's answer is told from the API server's own words: these mean that there was none.
func TestService(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer           func(http.ResponseWriter, *http.Request)
		expect, saw, why string
	}{
		"answers": {
			func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, r.URL.Path, "?", r.URL.RawQuery) },
			`status == 200 && body == "/api/v1/namespaces/a/services/s:80/proxy/m/x?q=1"`, "status 200: /api", "",
		},
		"its own error": {
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503); _, _ = fmt.Fprint(w, "busy") },
			`status == 503 && body == "busy"`, "status 503: busy", "",
		},
		"no endpoints": {
			func(w http.ResponseWriter, _ *http.Request) { apiError(w, 503, "no endpoints available") }, `status == 0`,
			"no endpoints", "",
		},
		"refused": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(502)
			_, _ = fmt.Fprint(w, "error trying to reach service: dial tcp: refused")
		}, `status == 0`, "refused", ""},
		"may not ask": {
			func(w http.ResponseWriter, _ *http.Request) { apiError(w, 403, "services/proxy is forbidden") },
			`status == 0`, "", "forbidden",
		},
		"without end": {
			func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, strings.Repeat("x", 10*maxText)) },
			`status == 200 && body.size() == 262144`, "status 200: xxx", "",
		},
		"hangs": {
			func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, `status == 0`,
			"no response within 200ms", "",
		},
		"hangs in a body": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, `status == 0`, "deadline", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := server(t, test.answer)
			timeout := scenario.Duration(time.Minute)
			if strings.HasPrefix(name, "hangs") {
				timeout = scenario.Duration(200 * time.Millisecond)
			}
			results, err := c.Run(t.Context(), []scenario.Check{{
				Expect: test.expect,
				HTTP:   &scenario.HTTP{Namespace: "a", Service: "s:80", Path: "/m/x?q=1", Timeout: timeout},
			}})
			if err != nil || results[0].OK != (test.why == "") || !strings.Contains(results[0].Message, test.why) ||
				!strings.Contains(results[0].Saw, test.saw) {
				t.Errorf("%.500s, %v", fmt.Sprintf("%+v", results), err)
			}
		})
	}
	w := newWorld()
	w.Config = nil
	for _, s := range []string{"s", "s:", ":80"} {
		w.Checker = server(t, nil)
		if r := w.one(
			t, scenario.Check{HTTP: &scenario.HTTP{Namespace: "a", Service: s}, Expect: "true"},
		); !strings.Contains(r.Message, "NAME:PORT") {
			t.Errorf("%s: %+v", s, r)
		}
	}
	if _, err := url.Parse("http://u/"); err != nil ||
		!slices.Equal(clients("u", 1500*time.Millisecond)[0], []string{"wget", "-q", "-S", "-T", "2", "-O", "-", "u"}) {
		t.Error("rounded up")
	}
}
