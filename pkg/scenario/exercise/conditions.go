package exercise

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition is a node condition that reports a problem: either Ready with a status other than True, or any other
// condition with status True.
type Condition struct {
	Node    string `json:"node"`
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"` // from the component that reports the condition; truncated
}

// String describes the condition: condition GPUXid on node gpu-1 is True (XID79).
func (c Condition) String() string {
	return fmt.Sprintf("condition %s on node %s is %s (%s)", c.Type, c.Node, c.Status, c.Reason)
}

// maxConditions limits the number of conditions in the record of an exercise.
const maxConditions = 200

// conditions lists node conditions that report problems.
func (l *Lab) conditions(ctx context.Context) ([]Condition, error) {
	nodes, err := l.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	var all []Condition
	for _, node := range nodes.Items {
		for _, c := range node.Status.Conditions {
			good := corev1.ConditionFalse
			if c.Type == corev1.NodeReady {
				good = corev1.ConditionTrue
			}
			if c.Status == good || len(all) == maxConditions {
				continue
			}
			all = append(all, Condition{
				Node: node.Name, Type: string(c.Type), Status: string(c.Status), Reason: c.Reason,
				Message: strings.ToValidUTF8(c.Message[:min(len(c.Message), 200)], ""),
			})
		}
	}
	return all, nil
}

// newConditions returns the conditions in now that are not in before.
func newConditions(before, now []Condition) []Condition {
	return slices.DeleteFunc(slices.Clone(now), func(c Condition) bool {
		return slices.ContainsFunc(before, func(b Condition) bool {
			return b.Node == c.Node && b.Type == c.Type && b.Status == c.Status
		})
	})
}
