package exercise

import (
	"fmt"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// CardVersion is the schema version of a Card.
const CardVersion = 1

// howToSubmit explains to candidates how to submit their result.
const howToSubmit = "Fix the problem in the cluster, and write your diagnosis as a JSON object with the string fields component, object (Kind/name), field, mechanism " +
	"and explanation."

// orInModule is for candidates with a Terraform module.
const orInModule = "Instead of fixing the cluster, you may fix the Terraform module and submit its directory. The " +
	"module is applied with your permissions before grading."

// Card returns the task card for the candidate of an exercise.
func (l *Lab) Card(e *Exercise) Card { return CardOf(e) }

// CardOf returns the task card for the candidate of an exercise: the public half and the deadline.
func CardOf(e *Exercise) Card {
	card := Card{
		SchemaVersion: CardVersion, Title: e.Public.Title, Briefing: e.Public.Briefing, Simulated: e.Public.Simulated,
		Terraform: e.Public.Terraform, Access: accessInWords(e.Public.Access), Minutes: e.Minutes, Deadline: e.Until,
		Submit: howToSubmit, Choices: e.Public.Choices,
		Namespace: e.Public.Access.Home(),
	}
	if card.Terraform != "" {
		card.Submit += " " + orInModule
	}
	return card
}

// accessInWords describes the candidate's permissions.
func accessInWords(a scenario.Access) []string {
	words := []string{"read nodes, and cluster-wide objects that contain no secrets"}
	if len(a.Namespaces) > 0 {
		words = append(words, "do anything as an administrator of namespace "+strings.Join(a.Namespaces, ", "))
	}
	if w := a.Workload; w != nil {
		words = append(words,
			fmt.Sprintf("view namespace %s (except Secrets), and change %s %s there", w.Namespace, w.Kind, w.Name))
	}
	if len(a.Read) > 0 {
		words = append(words, "read namespace "+strings.Join(a.Read, ", "))
	}
	for _, rule := range a.Rules {
		text := fmt.Sprintf("%s %s", strings.Join(rule.Verbs, ", "), strings.Join(rule.Resources, ", "))
		if len(rule.ResourceNames) > 0 {
			text += " " + strings.Join(rule.ResourceNames, ", ")
		}
		words = append(words, text)
	}
	if a.NodeShell {
		words = append(words,
			"create privileged pods in namespace "+a.Namespaces[0]+", and therefore become root on the nodes")
	}
	return words
}
