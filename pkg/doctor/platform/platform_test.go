package platform

import (
	"strings"
	"testing"
)

// The table is part of the program.
func TestTable(t *testing.T) {
	t.Parallel()
	all, err := read()
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range all {
		if p.Name != strings.ToLower(name) || !p.UsesSSH() && p.Note == "" {
			t.Errorf("platform %q has another name, or does not say what cannot be done", name)
		}
	}
}

// A command that works elsewhere must not be advised where it cannot work.
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
