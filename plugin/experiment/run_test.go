package experiment

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
)

// A file must not lead a command to another cluster than the one that the user confirms, or hide the flags that are
// appended to it.
func TestFilesDoNotChooseTheCluster(t *testing.T) {
	t.Parallel()
	o := &options{streams: genericiooptions.NewTestIOStreamsDiscard()}
	for _, line := range []string{
		"xid 79 a --context=other", "xid 79 a --context other", "xid 79 a --kubeconfig=/tmp/x",
		"xid 79 -s https://x",
		"xid 79 a -shttps://x", "xid 79 a --as=admin", "xid 79 a --token=x", "xid 79 a --ledger-namespace=x",
		"xid 79 a --",
		"cuda inject --context=other/x",
	} {
		if err := o.checkWords([][]string{{"xid", "79", "a"}, strings.Fields(line)}); err == nil ||
			!strings.Contains(err.Error(), "not allowed in an experiment") {
			t.Errorf("%s: %v", line, err)
		}
	}
	for _, line := range []string{
		"xid 79 a --gpu 0 --cascade=true", "cuda inject deployment/x -n demo --xid 79",
		"cuda inject job/x --namespace demo",
		"xid 79 -l gpu=yes --yes",
	} {
		if err := o.checkWords([][]string{strings.Fields(line)}); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// TestRevertOfTheControlPlane holds that an experiment that may inject into control plane nodes may also revert there,
// and that the revert gets no flag that it does not have.
func TestRevertOfTheControlPlane(t *testing.T) {
	t.Parallel()
	o := options{allow: fault.Allowances{ControlPlane: true, Majority: true}}
	got := o.allowances([]string{"revert", "network-abc234", "--yes"})
	if !slices.Equal(got, []string{"--allow-control-plane"}) {
		t.Errorf("%v", got)
	}
	o.allow.ControlPlane = false
	if got := o.allowances([]string{"revert", "network-abc234", "--yes"}); len(got) > 0 {
		t.Errorf("%v", got)
	}
}
