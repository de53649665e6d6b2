package device

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/dra"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// A taint is written as for kubectl taint; one that would do nothing is refused.
func TestParseTaint(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"gpu.nvidia.com/xid=79:NoExecute": "gpu.nvidia.com/xid 79 NoExecute",
		"lost:NoSchedule":                 "lost  NoSchedule",
		"lost=:NoSchedule":                "lost  NoSchedule",
		defaultTaint:                      "gpufault.dev/unhealthy true NoSchedule",
	} {
		got, err := parseTaint(text)
		if all := got.Key + " " + got.Value + " " + string(got.Effect); err != nil || all != want {
			t.Errorf("%s: %q, %v", text, all, err)
		}
	}
	for text, want := range map[string]string{
		"": "KEY=VALUE:EFFECT", "lost": "KEY=VALUE:EFFECT", "=1:NoExecute": "KEY=VALUE:EFFECT",
		"lost:None": "supported effects", "lost:noexecute": "supported effects", "lost-": "KEY=VALUE:EFFECT",
		"lost:": "supported effects",
	} {
		if _, err := parseTaint(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Exactly the selected devices are tainted; an ambiguous selection is refused, with what there is.
func TestChooseTainted(t *testing.T) {
	t.Parallel()
	gpu0 := dra.Device{Driver: "gpu.nvidia.com", Pool: "n", Name: "gpu-0", Pods: []dra.Pod{{UID: "uid-1"}}}
	gpu1 := dra.Device{Driver: "gpu.nvidia.com", Pool: "n", Name: "gpu-1"}
	channel := dra.Device{
		Driver: "compute-domain.nvidia.com",
		Pool:   "n",
		Name:   "gpu-0",
		Pods:   []dra.Pod{{UID: "uid-1"}},
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid-1"}}
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid-2"}}
	for name, test := range map[string]struct {
		t         tainting
		published []dra.Device
		pod       *corev1.Pod
		want, err string
	}{
		"by name": {
			t: tainting{devices: []string{"gpu-1"}}, published: []dra.Device{gpu0, gpu1}, want: "gpu.nvidia.com/gpu-1",
		},
		"two drivers": {
			t: tainting{devices: []string{"gpu-0"}}, published: []dra.Device{gpu0, channel},
			err: "--driver gpu.nvidia.com",
		},
		"of a driver": {
			t:         tainting{devices: []string{"gpu-0"}, driver: "gpu.nvidia.com"},
			published: []dra.Device{gpu0, channel}, want: "gpu.nvidia.com/gpu-0",
		},
		"no such driver": {
			t:         tainting{devices: []string{"gpu-0"}, driver: "gpu.amd.com"},
			published: []dra.Device{gpu0}, err: "the drivers are: gpu.nvidia.com",
		},
		"no such device": {
			t: tainting{devices: []string{"gpu-2"}}, published: []dra.Device{gpu0, gpu1},
			err: "the devices are: gpu-0, gpu-1",
		},
		"of a pod": {
			published: []dra.Device{gpu0, gpu1, channel}, pod: pod,
			want: "gpu.nvidia.com/gpu-0 compute-domain.nvidia.com/gpu-0",
		},
		"of a pod, by name": {
			t: tainting{devices: []string{"gpu-1"}}, published: []dra.Device{gpu0, gpu1}, pod: pod, err: "gpu-0",
		},
		"of a pod without devices": {published: []dra.Device{gpu0, gpu1}, pod: other, err: "holds no device"},
		"nothing published":        {t: tainting{devices: []string{"gpu-0"}}, err: "device unhealthy"},
	} {
		chosen, err := test.t.choose(test.published, test.pod)
		var got []string
		for _, d := range chosen {
			got = append(got, d.Driver+"/"+d.Name)
		}
		if strings.Join(got, " ") != test.want || (err == nil) != (test.err == "") ||
			err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// What needs no cluster is refused without one.
func TestTaintValidate(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"gpu-1":               "no device is selected",
		"gpu-1 --device=":     "no device is selected",
		"gpu-1 --device=a,,b": "empty name",
		"--device gpu-0":      "no target",
		"gpu-1 --device gpu-0 --taint a:Sometimes": "supported effects",
		"gpu-1 --device gpu-0 --ttl 0":             "--reason",
		"gpu-1 --device gpu-0 --image x":           "unknown flag",
	} {
		cmd := newTaintCommand(
			kube.NewConnection(genericiooptions.NewTestIOStreamsDiscard()),
			genericiooptions.NewTestIOStreamsDiscard(),
		)
		cmd.SetArgs(strings.Fields(args))
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("device taint %s: %v", args, err)
		}
	}
}
