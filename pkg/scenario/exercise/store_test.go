package exercise

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// Trainers who write at the same time lose nothing of each other's.
func TestWritersDoNotOverwriteEachOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, e := w.started(StartOptions{})
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			trainer := w.trainer(fmt.Sprint(i))
			for range 5 {
				for { // each attempt is bounded, and says so
					_, err := trainer.update(t.Context(), e.ID, func(e *Exercise) error {
						e.Hints = append(e.Hints, Taken{Cost: 1})
						return nil
					})
					if err == nil {
						break
					}
					if !strings.Contains(err.Error(), "others change it all the time") {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	group.Wait()
	if now, err := w.trainer("x").Get(t.Context(), e.ID); err != nil || len(now.Hints) != 20 {
		t.Errorf("%d hints, %v", len(now.Hints), err)
	}
}

// What cannot be read is not written back, and the error says how to undo what it changed.
func TestRecordsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		data map[string][]byte
		want string
	}{
		"empty":  {nil, "does not contain an exercise"},
		"broken": {map[string][]byte{keyExercise: []byte(`{"id":`)}, "kubectl gpu-fault revert scenario-x"},
		"newer": {
			map[string][]byte{
				keyExercise: []byte(`{"apiVersion":"gpufault.dev/v2","kind":"Exercise","id":"scenario-x"}`),
			},
			"newer version of kubectl gpu-fault",
		},
		"another name": {map[string][]byte{
			keyExercise: []byte(`{"apiVersion":"gpufault.dev/v1alpha1","kind":"Exercise","id":"scenario-y"}`),
		}, "contains exercise \"scenario-y\""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, &corev1.Namespace{
				ObjectMeta: metav1.ObjectMeta{Name: ledger.DefaultNamespace},
			}, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{
					Name: "scenario-x", Namespace: ledger.DefaultNamespace,
					Labels: labelsOf("scenario-x", kindExercise),
				}, Data: test.data,
			})
			trainer := w.trainer("laptop")
			_, err := trainer.Get(t.Context(), "scenario-x")
			wants(t, err, test.want)
			if all, err := trainer.List(t.Context()); err != nil || len(all) > 0 || len(trainer.said) == 0 {
				t.Errorf("%+v, %v, %q", all, err, trainer.said) // the others are listed all the same
			}
		})
	}
}

// A record stays small however often it is graded, and a scenario that does not fit is refused before anything is
// changed.
func TestRecordsAreBounded(t *testing.T) {
	t.Parallel()
	e := &Exercise{ID: "scenario-x"}
	for i := range 100 {
		e.Grades = append(e.Grades, Report{Score: i, Reasons: []string{strings.Repeat("x", 100<<10)}})
	}
	secret, err := encode(e, nil)
	if err != nil || len(secret.Data[keyExercise]) > maxSize-maxScenario {
		t.Fatalf("%d bytes, %v", len(secret.Data[keyExercise]), err)
	}
	back, err := decode(secret)
	if err != nil || len(back.Grades) == 0 || back.Last().Score != 99 {
		t.Errorf("%d grades, %v", len(back.Grades), err)
	}
	var r scenario.Resolved
	var story strings.Builder
	for i := range 400_000 {
		fmt.Fprintf(&story, "%x", uint32(i)*2654435761)
	}
	r.Sealed.Story = story.String()
	_, err = encodeScenario(&r)
	wants(t, err, "the maximum is 512")
}

// Of exercises that are over so many are remembered and no more; one that runs is never forgotten.
func TestHistory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	trainer, running := w.started(StartOptions{})
	for i := range historyLimit + 5 {
		e := &Exercise{
			ID: fmt.Sprintf("scenario-%06d", i), Phase: Ended, Created: noon.Add(time.Duration(i) * time.Hour),
		}
		if err := trainer.create(t.Context(), e, w.play()); err != nil {
			t.Fatal(err)
		}
	}
	if err := trainer.prune(t.Context()); err != nil {
		t.Fatal(err)
	}
	all, err := trainer.List(t.Context())
	if err != nil || len(all) != historyLimit+1 || all[len(all)-1].ID != running.ID ||
		all[0].ID != fmt.Sprintf("scenario-%06d", historyLimit+4) {
		t.Errorf("%d, %v", len(all), err)
	}
}

// The API server's clock counts where this machine's is off; where it is not, or the API server does not say, this
// machine's, which is finer.
func TestClock(t *testing.T) {
	t.Parallel()
	date := func(off time.Duration) func() string {
		return func() string { return time.Now().Add(off).UTC().Format(http.TimeFormat) }
	}
	for name, test := range map[string]struct {
		date func() string
		want time.Duration
		says string
	}{
		"right":   {date(0), 0, ""},
		"behind":  {date(time.Hour), time.Hour, "behind the API server's; using the API server's"},
		"ahead":   {date(-time.Hour), -time.Hour, "ahead of the API server's"},
		"no date": {func() string { return "yesterday" }, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
				if request.URL.Path != "/prefix/version" {
					t.Errorf("asked for %s", request.URL.Path)
				}
				answer.Header().Set("Date", test.date())
			}))
			defer server.Close()
			said := ""
			lab := &Lab{Config: &rest.Config{Host: server.URL + "/prefix"}, Progress: func(text string) { said = text }}
			skew := time.Until(lab.clock(t.Context())())
			if (skew-test.want).Abs() > 2*time.Second || !strings.Contains(said, test.says) {
				t.Errorf("%s off, %q", skew, said)
			}
			if test.want == 0 && said != "" {
				t.Errorf("said %q", said)
			}
		})
	}
	if skew := time.Until(
		(&Lab{Config: &rest.Config{Host: "127.0.0.1:1"}}).clock(t.Context())(),
	); skew.Abs() > time.Second {
		t.Errorf("%s off without an API server", skew)
	}
}
