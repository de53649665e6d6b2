// Package deviceplugin checks the device plugin of NVIDIA, and what it advertises.
package deviceplugin

import (
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
)

// Checks returns those of what advertises GPUs to the kubelet.
//
// Not built: of dp.capacity-zero that a plugin registered before the kubelet's last start: neither the sockets' times
// nor the plugin's own lines prove it, so that both are quoted and nothing is concluded from them; of share.mps a wrong
// hostIPC of workloads, which no message names.
func Checks() []engine.Check {
	return []engine.Check{
		pluginPodCheck(), nvmlCheck(), capacityCheck(), noPluginCheck(), unhealthyCheck(), unhealthyXIDCheck(),
		duplicateCheck(),
		migStrategyCheck(), timeSlicingCheck(), mpsCheck(),
	}
}
