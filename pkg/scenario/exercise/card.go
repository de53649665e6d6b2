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

// Card is what the candidate of an exercise is handed.
func (l *Lab) Card(e *Exercise) Card { return CardOf(e) }

// CardOf is what the candidate of an exercise is handed: the public half, and when their time is over.
func CardOf(e *Exercise) Card {
	card := Card{
		SchemaVersion: CardVersion, Title: e.Public.Title, Briefing: e.Public.Briefing, Simulated: e.Public.Simulated,
		Access: accessInWords(e.Public.Access), Minutes: e.Minutes, Deadline: e.Until, Submit: howToSubmit, Choices: e.Public.Choices,
	}
	if len(e.Public.Access.Namespaces) > 0 {
		card.Namespace = e.Public.Access.Namespaces[0]
	}
	return card
}

// accessInWords says what a candidate may do.
func accessInWords(a scenario.Access) []string {
	words := []string{"read nodes, and what has no secrets in the whole cluster"}
	if len(a.Namespaces) > 0 {
		words = append(words, "everything an administrator may do in namespace "+strings.Join(a.Namespaces, ", "))
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
