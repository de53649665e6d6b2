package cuda

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// runProfiles returns what `cuda profiles` prints.
func runProfiles(t *testing.T, args ...string) (string, error) {
	t.Helper()
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	cmd := newProfilesCommand(streams)
	cmd.SetArgs(append([]string{}, args...)) // nil would be the arguments of the test
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&bytes.Buffer{})
	err := cmd.Execute()
	return out.String(), err
}

func TestProfiles(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"profiles": nil, "profiles-wide": {"-o", "wide"}, "profiles-name": {"-o", "name"},
		"profiles-yaml": {"79", "94", "63", "driver-mismatch", "-o", "yaml"},
		"profiles-two":  {"149,109", "--no-headers"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := runProfiles(t, args...)
			if err != nil {
				t.Fatal(err)
			}
			golden.Compare(t, name+".golden", out)
		})
	}
}

// Scripts read all profiles from JSON; each has its errors by name, and its sources.
func TestProfilesAsJSON(t *testing.T) {
	t.Parallel()
	out, err := runProfiles(t, "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		APIVersion, Kind string
		Items            []struct {
			Name       string
			Injectable bool
			Running    *struct {
				Code    int
				Name    string
				Basis   string
				Classes []string
				Surface string
			}
			Evidence []struct{ Source string }
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	if list.Kind != "CUDAProfileList" || list.APIVersion != "gpufault.dev/v1alpha1" ||
		len(list.Items) != len(cudafault.Profiles()) {
		t.Errorf("%s %s with %d items", list.APIVersion, list.Kind, len(list.Items))
	}
	for _, p := range list.Items {
		if r := p.Running; r != nil &&
			(!strings.HasPrefix(r.Name, "CUDA_ERROR_") || r.Basis == "" || r.Surface == "" || len(r.Classes) == 0) {
			t.Errorf("%s: %+v", p.Name, r)
		}
		if len(p.Evidence) == 0 {
			t.Errorf("%s has no evidence", p.Name)
		}
	}
}

func TestProfilesRefuse(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"62"}, "profile for XID 62 not found"},
		{[]string{"nvlink"}, "fabric-not-ready"},
		{[]string{"79", ""}, `profile "" not found`},
		{[]string{"79", "-o", "xml"}, "unknown output format"},
	} {
		if out, err := runProfiles(t, test.args...); err == nil || !strings.Contains(err.Error(), test.want) ||
			out != "" {
			t.Errorf("%q: error %v, want one with %q; %s", test.args, err, test.want, out)
		}
	}
}

func TestProfilesComplete(t *testing.T) {
	t.Parallel()
	streams, _, _, _ := genericiooptions.NewTestIOStreams()
	cmd := newProfilesCommand(streams)
	words, _ := cmd.ValidArgsFunction(cmd, []string{"14", "145"}, "14")
	if want := []string{"140\tUnrecovered ECC error", "149\tNVLink 5 error (NETIR)"}; !slices.Equal(words, want) {
		t.Errorf("completes to %q, want %q", words, want)
	}
	if words, _ := cmd.ValidArgsFunction(cmd, nil, ""); len(words) != len(cudafault.Profiles()) {
		t.Errorf("%d words", len(words))
	}
}
