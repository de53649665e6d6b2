package exercise

import (
	"fmt"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// CardVersion is the version of the form of a Card.
const CardVersion = 1

// howToSubmit tells candidates what to write.
const howToSubmit = "Mend it in the cluster, and write your diagnosis as a JSON object with the strings component, object (Kind/name), field, mechanism " +
	"and explanation."

// orInModule is for who got a Terraform module.
const orInModule = "In the place of the cluster you may mend the Terraform module and hand its folder in: it is applied with your rights before it is judged."

// Card returns what the candidate of an exercise is handed.
func (l *Lab) Card(e *Exercise) Card { return CardOf(e) }

// CardOf returns what the candidate of an exercise is handed: the public half, and when their time is over.
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

// accessInWords returns what a candidate may do.
func accessInWords(a scenario.Access) []string {
	words := []string{"read nodes, and what has no secrets in the whole cluster"}
	if len(a.Namespaces) > 0 {
		words = append(words, "everything an administrator may do in namespace "+strings.Join(a.Namespaces, ", "))
	}
	if w := a.Workload; w != nil {
		words = append(words,
			fmt.Sprintf("view namespace %s (no Secrets), and change %s %s there", w.Namespace, w.Kind, w.Name))
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
		words = append(words, "privileged pods in namespace "+a.Namespaces[0]+", and by them root on the nodes")
	}
	return words
}
