// Package deviceplugin checks NVIDIA's device plugin and the resources that it advertises.
package deviceplugin

import (
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
)

// Checks returns the checks for the device plugin layer.
//
// Two causes are not detected. dp.capacity-zero does not detect a plugin that registered before the kubelet's last
// start, because neither the sockets' times nor the plugin's log proves this; the check only quotes them. share.mps
// does not detect a wrong hostIPC setting in workloads, because no message mentions it.
func Checks() []engine.Check {
	return []engine.Check{
		pluginPodCheck(), nvmlCheck(), capacityCheck(), noPluginCheck(), unhealthyCheck(), unhealthyXIDCheck(),
		selectsNoneCheck(), duplicateCheck(),
		migStrategyCheck(), timeSlicingCheck(), mpsCheck(),
	}
}
