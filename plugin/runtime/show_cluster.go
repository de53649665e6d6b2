package runtime

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/runtimeview"
)

// readCluster returns the runtime settings in the cluster. If reading them fails, it returns a warning.
func readCluster(
	ctx context.Context, client kubernetes.Interface, nodeLabels labels.Set,
) (classes []runtimeClass, toolkits []toolkit, warnings []string) {
	list, err := client.NodeV1().RuntimeClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		warnings = append(warnings, fmt.Sprintf("could not list RuntimeClasses: %v", err))
	} else {
		for _, c := range list.Items {
			classes = append(classes, runtimeClass{Name: c.Name, Handler: c.Handler})
		}
	}
	sets, err := client.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return classes, nil,
			append(warnings, fmt.Sprintf("could not read the settings of the NVIDIA container toolkit: %v", err))
	}
	for _, set := range sets.Items {
		toolkits = append(toolkits, runtimeview.ToolkitsOf(set, nodeLabels)...)
	}
	return classes, toolkits, warnings
}
