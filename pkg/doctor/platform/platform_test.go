package platform

import (
	"strings"
	"testing"
)

// TestTable verifies that the table, which is part of the program, is valid.
func TestTable(t *testing.T) {
	t.Parallel()
	k, err := read()
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range k.platforms {
		if p.Name != strings.ToLower(name) || !p.UsesSSH() && p.Note == "" {
			t.Errorf("platform %q has another name, or does not say what cannot be done", name)
		}
	}
}

// TestOn verifies that a command is not suggested on a platform where it does not work.
func TestOn(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ platform, command, want string }{
		{"talos", "sudo journalctl -u kubelet.service -n 50 --no-pager", "talosctl -n gpu-1 logs kubelet"},
		{"talos", "sudo dmesg | tail", "talosctl -n gpu-1 dmesg"},
		{"talos", "sudo apt-get install nvidia-driver", ""},
		{"openshift", "sudo systemctl restart crio", "oc debug node/gpu-1 -- chroot /host sudo systemctl restart crio"},
		{"bottlerocket", "sudo dnf install x", ""},
	} {
		p, ok := Of(test.platform)
		if !ok {
			t.Fatalf("platform %s is unknown", test.platform)
		}
		if got, _ := p.On("gpu-1", test.command); got != test.want {
			t.Errorf("%s: %q became %q, want %q", test.platform, test.command, got, test.want)
		}
	}
	if _, ok := Of("kubeadm"); ok {
		t.Error("a platform without a row is known")
	}
}

// TestInstanceTypesWithGPUs verifies that nodes of these types count as GPU nodes even without a label.
func TestInstanceTypesWithGPUs(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"p3dn.24xlarge", "p4d.24xlarge", "p5en.48xlarge", "p6-b200.48xlarge", "p6e-gb200.36xlarge", "g4dn.xlarge",
		"g5g.xlarge", "g6e.12xlarge", "gr6.4xlarge", "g7.8xlarge", "a2-highgpu-1g", "a2-ultragpu-8g", "a3-megagpu-8g",
		"a3-edgegpu-8g", "a4-highgpu-8g", "a4x-highgpu-4g", "g2-standard-12", "g4-standard-48", "Standard_NC6_Promo",
		"Standard_NC6s_v3", "Standard_NC24ads_A100_v4", "Standard_NC40ads_H100_v5", "Standard_ND96asr_v4",
		"Standard_ND96isr_H100_v5", "Standard_NV36ads_A10_v5", "Standard_NV6", "VM.GPU.A10.1", "BM.GPU.H100.8",
		"BM.GPU4.8", "VM.GPU3.1", "ecs.gn7i-c8g1.2xlarge",
	} {
		if !HasGPUs(name) {
			t.Errorf("%s has no GPUs", name)
		}
	}
	for _, name := range []string{
		"", "m7i.large", "g4ad.xlarge", "c5.large", "a1.large", "a2.small", "e2-standard-4", "n1-standard-4",
		"Standard_D4s_v3", "Standard_NV4as_v4", "Standard_ND96isr_MI300X_v5", "Standard_NP10s", "BM.GPU.MI300X.8",
		"VM.Standard.E4.Flex", "ecs.g7.large", "gd-2vcpu-8gb", "k3s", "g1-small",
	} {
		if HasGPUs(name) {
			t.Errorf("%s has GPUs", name)
		}
	}
}
