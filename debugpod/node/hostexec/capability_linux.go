package hostexec

import (
	"fmt"
	"os/exec"

	"golang.org/x/sys/unix"
)

// withheld returns the capabilities that no program of the node gets from us: root's nvidia-smi loads the driver and
// makes its device nodes (nvidia-modprobe(1)), which would change the node, and mend what is to be found out.
func withheld() []uint { return []uint{unix.CAP_SYS_MODULE, unix.CAP_MKNOD} }

// RunWithheld is cmd.Run without the withheld capabilities.
func RunWithheld(cmd *exec.Cmd) error {
	return OnOwnThread(func() error {
		if err := withhold(); err != nil {
			return fmt.Errorf("it was not run: %w", err)
		}
		return cmd.Run()
	})
}

// withhold makes the children of this thread do without the withheld capabilities.
func withhold() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("read the capabilities: %w", err)
	}
	for _, c := range withheld() {
		bit := uint32(1) << (c % 32)
		sets[c/32].Inheritable &^= bit // the bounding set does not limit what is inherited
		err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		if err != nil && sets[c/32].Permitted&bit != 0 { // who has none passes none on
			return fmt.Errorf("drop capability %d, with which it could change the node: %w", c, err)
		}
	}
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return fmt.Errorf("limit what is inherited: %w", err)
	}
	return nil
}
