package runtime

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/runtimeview"
)

// readCluster reads what the cluster says about runtimes. Who may not read it gets a warning, and the node's own side.
func readCluster(
	ctx context.Context, client kubernetes.Interface, nodeLabels labels.Set,
) (classes []runtimeClass, toolkits []toolkit, warnings []string) {
	list, err := client.NodeV1().RuntimeClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		warnings = append(warnings, fmt.Sprintf("the cluster's RuntimeClasses are not shown: %v", err))
	} else {
		for _, c := range list.Items {
			classes = append(classes, runtimeClass{Name: c.Name, Handler: c.Handler})
		}
	}
	sets, err := client.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return classes, nil,
			append(warnings, fmt.Sprintf("what the NVIDIA container toolkit was told is not shown: %v", err))
	}
	for _, set := range sets.Items {
		toolkits = append(toolkits, runtimeview.ToolkitsOf(set, nodeLabels)...)
	}
	return classes, toolkits, warnings
}
