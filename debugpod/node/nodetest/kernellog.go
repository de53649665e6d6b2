package nodetest

import (
	"os"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

// RealKernelLog returns a Host with this machine's kernel log. It skips the test if the log is not usable.
func RealKernelLog(t *testing.T) hostfs.Host {
	t.Helper()
	host := hostfs.Host{Root: "/", Proc: "/proc", Kmsg: "/dev/kmsg"}
	if hostfs.Trimmed(os.DirFS(host.Proc), "sys/kernel/printk_devkmsg") == "off" {
		t.Skip("kernel.printk_devkmsg is off: writing to the kernel log is disabled")
	}
	for _, flag := range []int{os.O_RDONLY, os.O_WRONLY} {
		f, err := os.OpenFile(host.Kmsg, flag, 0)
		if err != nil {
			t.Skipf("this test requires root and access to the kernel log: %v", err)
		}
		_ = f.Close()
	}
	return host
}
