package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/access"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/recorder"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// recording contains the options of `scenario record`.
type recording struct {
	common
	kubeconfig string
	transcript string
	every      time.Duration // how often to check whether the candidate's token is still valid
	format     printer.Format
}

func (c *common) newRecordCommand() *cobra.Command {
	r := &recording{common: *c, every: 15 * time.Second}
	cmd := &cobra.Command{
		Use:   "record --kubeconfig CANDIDATE --kubeconfig-out FILE --transcript FILE",
		Short: "Record the candidate's API requests for the interviewer's report",
		Long: `Run a proxy between the candidate's kubectl and the API server, and record each request: verb, object, time and response code. The contents of
objects, tokens and terminal sessions are never recorded; strings that look like credentials are removed from commands.

The proxy runs on the candidate's machine, with the candidate's kubeconfig, until you press Ctrl-C, or until the time box or the exercise ends.
The candidate uses the kubeconfig that the command writes, which works only on this machine and only while the proxy is running. The proxy has
no access to the answer.

If a transcript of this candidate already exists, new requests are appended. The transcript does not affect the score: a candidate with the
original kubeconfig can bypass the proxy. scenario grade --transcript shows the transcript to the interviewer.`,
		Example: `  # Record, on the candidate's machine
  kubectl gpu-fault scenario record --kubeconfig candidate.kubeconfig \
      --kubeconfig-out recorded.kubeconfig --transcript anna.jsonl

  # Use the transcript, as the interviewer
  kubectl gpu-fault scenario grade --transcript anna.jsonl --html report.html`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := r.validate(); err != nil {
				return err
			}
			return r.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&r.kubeconfig, "kubeconfig-out", "",
		"File for the kubeconfig that the candidate uses; must not exist, and is removed when the recording ends")
	cmd.Flags().StringVar(&r.transcript, "transcript", "",
		"File for the transcript, as JSON lines, readable only by its owner")
	r.format.AddFlags(cmd)
	return cmd
}

// validate checks everything that does not require a cluster.
func (r *recording) validate() error {
	switch {
	case r.kubeconfig == "":
		return errors.New("specify --kubeconfig-out FILE, for the kubeconfig that the candidate will use")
	case r.transcript == "":
		return errors.New("specify --transcript FILE")
	}
	if err := mustBeNew(r.kubeconfig); err != nil {
		return err
	}
	return r.format.Validate()
}

func (r *recording) run(ctx context.Context) error {
	cluster, err := r.connection.Cluster()
	if err != nil {
		return err
	}
	user, err := whoami(ctx, cluster)
	if err != nil {
		return kube.Explain(err)
	}
	if !access.IsUser(user) {
		return fmt.Errorf("this kubeconfig belongs to %s, not to a candidate, and would give the candidate all of that user's permissions: specify --kubeconfig FILE, "+
			"the file that scenario start --kubeconfig-out wrote", user)
	}
	now, note := exercise.ServerClock(ctx, cluster.Config)
	if note != "" {
		printer.Talk(r.streams.ErrOut, "%s", note)
	}
	file, err := recorder.Open(r.transcript, user, now())
	if err != nil {
		return fmt.Errorf("--transcript: %w", err)
	}
	proxy, err := recorder.Start(ctx, cluster.Config, cluster.Namespace, file, now, nil)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	if err := writeNew(r.kubeconfig, proxy.Kubeconfig); err != nil {
		return errors.Join(fmt.Errorf("--kubeconfig-out: %w", err), proxy.Stop(), file.Close())
	}
	printer.Talk(r.streams.ErrOut, "Recording to %s until Ctrl-C. On the candidate's terminal, run: export KUBECONFIG=%s",
		r.transcript, r.kubeconfig)
	r.watch(ctx, cluster, proxy, file)
	if err := errors.Join(proxy.Stop(), file.Close(), os.Remove(r.kubeconfig)); err != nil {
		return fmt.Errorf("the recording ended early: %w", err)
	}
	return r.print()
}

// watch reports the number of requests and returns when the recording is over.
func (r *recording) watch(ctx context.Context, cluster *kube.Cluster, proxy *recorder.Recording, file *recorder.File) {
	report := progress.New(r.streams.ErrOut)
	tick := time.NewTicker(r.every)
	defer tick.Stop()
	told, refused := file.Requests(), 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-proxy.Done:
			return
		case <-tick.C:
		}
		if n := file.Requests(); n != told {
			told = n
			report.Step("transcript", count.Of(int(n), "request"))
		}
		_, err := whoami(ctx, cluster)
		if !apierrors.IsUnauthorized(err) { // an unreachable API server may recover
			refused = 0
			continue
		}
		if refused++; refused > 1 { // an API server may reject a valid token once while starting
			printer.Talk(r.streams.ErrOut,
				"The candidate's token is no longer valid: the time is over, or the exercise has ended.")
			return
		}
	}
}

// whoami returns the user name of the credentials according to the API server.
func whoami(ctx context.Context, cluster *kube.Cluster) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	review, err := cluster.Client.AuthenticationV1().SelfSubjectReviews().Create(ctx,
		&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return review.Status.UserInfo.Username, nil
}

// recorded is the output of `record -o json`.
type recorded struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	User       string `json:"user"`
	recorder.Summary
	Asked []recorder.Asked `json:"asked"`
}

// print shows the recorded requests, without revealing which requests are expected.
func (r *recording) print() error {
	t, err := recorder.ReadFile(r.transcript)
	if err != nil {
		return err
	}
	all := recorded{
		recorder.APIVersion, "TranscriptSummary", t.User, recorder.Summarize(t.Lines), recorder.Tally(t.Lines),
	}
	if !r.format.IsTable() {
		return r.format.Object(r.streams.Out, all, "transcript/"+r.transcript)
	}
	table := &printer.Table{
		Header: []string{"VERB", "RESOURCE", "REQUESTS", "REFUSED", "FIRST"}, NoHeader: r.format.NoHeader,
	}
	for _, a := range all.Asked {
		table.Add(a.Verb, a.Resource, strconv.Itoa(a.Requests), strconv.Itoa(a.Refused),
			"+"+duration.HumanDuration(a.First.Sub(t.Began)))
	}
	if err := table.Write(r.streams.Out); err != nil {
		return err
	}
	printer.Talk(r.streams.ErrOut, "%s, including %s; %s contains all of the "+
		"requests", count.Of(all.Requests, "request"),
		count.Of(all.Changes, "change"), r.transcript)
	return nil
}
