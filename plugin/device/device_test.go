package device

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/gpus"
)

const (
	uuid0 = "GPU-11111111-1111-1111-1111-111111111111"
	uuid1 = "GPU-22222222-2222-2222-2222-222222222222"
)

func twoGPUs() api.Info {
	return api.Info{GPUs: []api.GPU{{UUID: uuid0, PCI: "0000:17:00.0"}, {UUID: uuid1, PCI: "0000:2f:00.0"}}}
}

func resource(name string, ids ...string) api.DeviceResource {
	return api.DeviceResource{Name: name, Healthy: ids, Pods: map[string]string{}}
}

// What is selected is exactly what is failed; whatever is ambiguous or not there is refused, with what there is.
func TestChoose(t *testing.T) {
	t.Parallel()
	whole, shared := resource(
		defaultResource,
		uuid1,
		uuid0,
	), resource(
		"nvidia.com/gpu.shared",
		uuid0+"::0",
		uuid1+"::0",
		uuid1+"::1",
	)
	whole.Pods[uuid1] = "uid-1"
	mig := resource("nvidia.com/mig-1g.10gb", "MIG-1", "MIG-2")
	amd := resource("amd.com/gpu", "0000:c1:00.0")
	for name, test := range map[string]struct {
		s         selection
		gpu       string
		resources []api.DeviceResource
		want      string
		err       string
	}{
		"by index":       {gpu: "1", resources: []api.DeviceResource{whole}, want: uuid1},
		"by PCI address": {gpu: "0000:17:00", resources: []api.DeviceResource{whole, mig}, want: uuid0},
		"all":            {gpu: "all", resources: []api.DeviceResource{whole}, want: uuid0 + " " + uuid1},
		"by ID": {
			s: selection{devices: []string{uuid0, uuid0}}, resources: []api.DeviceResource{whole}, want: uuid0,
		},
		"shared": {
			gpu: "1", resources: []api.DeviceResource{shared}, want: uuid1 + "::0 " + uuid1 + "::1",
		},
		"by index in the IDs": {
			gpu: "1", resources: []api.DeviceResource{resource(defaultResource, "0", "1")}, want: "1",
		},
		"of a pod": {
			s: selection{pod: gpus.Pod{UID: "uid-1"}}, resources: []api.DeviceResource{whole, mig}, want: uuid1,
		},
		"the first GPU of a pod": {
			s: selection{pod: gpus.Pod{UID: "uid-1"}}, gpu: "0", resources: []api.DeviceResource{whole}, want: uuid1,
		},
		"a GPU that the pod does not hold": {
			s: selection{pod: gpus.Pod{Namespace: "ml", Name: "a", UID: "uid-1"}}, gpu: uuid0,
			resources: []api.DeviceResource{whole}, err: "pod ml/a does not hold " + uuid0,
		},
		"another vendor": {
			s:         selection{resource: "amd.com/gpu", devices: []string{"0000:c1:00.0"}},
			resources: []api.DeviceResource{whole, amd}, want: "0000:c1:00.0",
		},
		"of a pod without devices": {
			s: selection{pod: gpus.Pod{UID: "uid-2"}}, resources: []api.DeviceResource{whole},
			err: "holds no device of nvidia.com/gpu",
		},
		"no such index": {gpu: "2", resources: []api.DeviceResource{whole}, err: "GPU 2 not found"},
		"no such device": {
			s: selection{devices: []string{"x"}}, resources: []api.DeviceResource{whole},
			err: "the devices are: " + uuid0,
		},
		"MIG by index": {
			gpu: "0", s: selection{resource: mig.Name}, resources: []api.DeviceResource{mig}, err: "MIG-1, MIG-2",
		},
		"no resource": {gpu: "0", err: "no device plugin"},
		"no such resource": {
			gpu: "0", s: selection{resource: "a/b"}, resources: []api.DeviceResource{amd}, err: "amd.com/gpu",
		},
		"ambiguous": {gpu: "0", resources: []api.DeviceResource{mig, amd}, err: "--resource amd.com/gpu"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.gpu != "" {
				choices, err := gpus.Parse(test.gpu)
				if err != nil {
					t.Fatal(err)
				}
				test.s.gpus = choices
			}
			_, ids, err := test.s.choose(twoGPUs(), api.Devices{Resources: test.resources})
			if got := strings.Join(ids, " "); got != test.want || (err != nil) != (test.err != "") ||
				err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("%q, %v; wanted %q, %q", got, err, test.want, test.err)
			}
		})
	}
	s := selection{gpus: gpus.Choices{}}
	s.gpus, _ = gpus.Parse("0")
	if _, _, err := s.choose(api.Info{}, api.Devices{Resources: []api.DeviceResource{amd}}); err == nil ||
		!strings.Contains(err.Error(), "specify --device; the devices are: 0000:c1:00.0") {
		t.Errorf("without NVIDIA's driver: %v", err)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*failing)
		want   string
	}{
		"fine":           {func(*failing) {}, ""},
		"nothing":        {func(f *failing) { f.gpu = "" }, "--gpu, --device or --pod"},
		"both":           {func(f *failing) { f.devices = []string{"x"} }, "cannot be used together"},
		"an empty ID":    {func(f *failing) { f.gpu, f.devices = "", []string{" "} }, "empty ID"},
		"a MIG device":   {func(f *failing) { f.gpu = "MIG-x" }, "MIG device"},
		"no end":         {func(f *failing) { f.TTL.TTL, f.TTL.Reason = 0, "because" }, "--ttl 0 is not supported"},
		"no node":        {func(f *failing) { f.Nodes.Names = nil }, "no target"},
		"a pod and node": {func(f *failing) { f.Nodes.Pod = "p" }, "only one of"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFailing()
			f.Nodes.Names, f.gpu = []string{"gpu-1"}, "1"
			test.change(f)
			if err := f.validate(); (err != nil) != (test.want != "") ||
				err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, wanted %q", err, test.want)
			}
		})
	}
}

// The list has every device once, with its GPU, its pod and the run that made it unhealthy.
func TestDeviceList(t *testing.T) {
	t.Parallel()
	r := resource(defaultResource, uuid0)
	r.Unhealthy, r.Failed = []string{uuid1}, map[string]string{uuid1: "device-1"}
	r.Pods[uuid0], r.Pods[uuid1] = "uid-1", "uid-2"
	all := api.Devices{Resources: []api.DeviceResource{r}}
	list := newDeviceList("gpu-1", twoGPUs(), all, map[string]string{"uid-1": "research/trainer"})
	if len(list.Items) != 2 {
		t.Fatalf("%+v", list)
	}
	a, b := list.Items[0], list.Items[1]
	if a.ID != uuid0 || *a.GPU != 0 || a.Health != "Healthy" || a.Pod != "research/trainer" || a.Run != "" {
		t.Errorf("%+v", a)
	}
	if b.ID != uuid1 || *b.GPU != 1 || b.Health != "Unhealthy" || b.Pod != "" || b.Run != "device-1" {
		t.Errorf("%+v, which a pod held that was deleted", b)
	}
	if list = newDeviceList("gpu-1", twoGPUs(), all, nil); list.Items[1].Pod != "uid-2" {
		t.Errorf("%+v, and the pods could not be listed", list.Items[1])
	}
}

// TestChooseUnhealthy: a device that the device plugin itself has reported is told apart from one that does not exist,
// and from one that a run of ours has failed, about which the node knows more.
func TestChooseUnhealthy(t *testing.T) {
	t.Parallel()
	choices, err := gpus.Parse("1")
	if err != nil {
		t.Fatal(err)
	}
	r := api.DeviceResource{Name: defaultResource, Healthy: []string{uuid0}}
	for name, test := range map[string]struct {
		unhealthy []string
		failed    map[string]string
		typed     bool
	}{
		"held by a pod":      {[]string{uuid1}, nil, true},
		"forgotten":          {nil, nil, true},
		"failed by our runs": {[]string{uuid1}, map[string]string{uuid1: "device-7k3f9q"}, false},
	} {
		r.Unhealthy, r.Failed = test.unhealthy, test.failed
		_, _, err := selection{gpus: choices}.choose(twoGPUs(), api.Devices{Resources: []api.DeviceResource{r}})
		var none *NoDeviceError
		if errors.As(err, &none) != test.typed {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCheckPlugin: the device layer is refused on a node whose GPUs a DRA driver publishes, before the nvml layer
// restarts the driver.
func TestCheckPlugin(t *testing.T) {
	t.Parallel()
	name := "gpu-1"
	slice := func(driver string) *resourcev1.ResourceSlice {
		return &resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: driver},
			Spec: resourcev1.ResourceSliceSpec{
				Driver: driver, NodeName: &name, Devices: []resourcev1.Device{{Name: "gpu-0"}},
			},
		}
	}
	for what, test := range map[string]struct {
		gpus    string
		driver  string
		refused bool
	}{
		"a DRA driver":        {"0", "gpu.nvidia.com", true},
		"a device plugin":     {"2", "gpu.nvidia.com", false},
		"another DRA driver":  {"0", "nic.example.com", false},
		"compute domains":     {"0", "compute-domain.nvidia.com", false},
		"devices of a plugin": {"2", "nic.example.com", false},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{
				"nvidia.com/gpu": apiresource.MustParse(test.gpus), "rdma/hca": apiresource.MustParse("4"),
			},
		}}
		err := CheckPlugin(t.Context(), fake.NewClientset(node, slice(test.driver)), name)
		if (err != nil) != test.refused || err != nil && !strings.Contains(err.Error(), "device taint") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
