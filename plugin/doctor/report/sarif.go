package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// The parts of SARIF 2.1.0 (OASIS standard, 27 March 2020) that are used.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool struct {
			Driver sarifDriver `json:"driver"`
		} `json:"tool"`
		Invocations []sarifInvocation `json:"invocations"`
		ColumnKind  string            `json:"columnKind"`
		Results     []sarifResult     `json:"results"`
	}
	sarifDriver struct {
		Name           string      `json:"name"`
		Version        string      `json:"version"`
		InformationURI string      `json:"informationUri"`
		Rules          []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID               string         `json:"id"`
		ShortDescription sarifText      `json:"shortDescription"`
		FullDescription  sarifText      `json:"fullDescription"`
		Help             sarifText      `json:"help"`
		HelpURI          string         `json:"helpUri,omitempty"`
		Properties       map[string]any `json:"properties"`
	}
	sarifText struct {
		Text     string `json:"text"`
		Markdown string `json:"markdown,omitempty"`
	}
	sarifInvocation struct {
		ExecutionSuccessful bool                `json:"executionSuccessful"`
		EndTimeUTC          string              `json:"endTimeUtc"`
		Notifications       []sarifNotification `json:"toolExecutionNotifications"`
	}
	sarifNotification struct {
		Level          string         `json:"level"`
		Message        sarifText      `json:"message"`
		AssociatedRule *sarifRuleRef  `json:"associatedRule,omitempty"`
		Properties     map[string]any `json:"properties,omitempty"`
	}
	sarifRuleRef struct {
		ID string `json:"id"`
	}
	sarifResult struct {
		RuleID       string            `json:"ruleId"`
		RuleIndex    int               `json:"ruleIndex"`
		Kind         string            `json:"kind,omitempty"` // empty means "fail"
		Level        string            `json:"level"`
		Message      sarifText         `json:"message"`
		Locations    []sarifLocation   `json:"locations"`
		Fingerprints map[string]string `json:"partialFingerprints"`
		Properties   map[string]any    `json:"properties"`
	}
	sarifLocation struct {
		Logical []sarifLogical `json:"logicalLocations"`
	}
	sarifLogical struct {
		Name string `json:"name"`
		Full string `json:"fullyQualifiedName"`
		Kind string `json:"kind"`
	}
)

// The SARIF schema, and the home page of this tool.
const (
	sarifSchema = "https://json.schemastore.org/sarif-2.1.0.json"
	home        = "https://github.com/gpu-fault/kubectl-gpu-fault"
)

// maxLocations is the maximum number of objects in one result. SARIF readers reject more than a thousand.
const maxLocations = 1000

// SARIF writes the root causes as results, the checks as rules, and what could not be checked as notifications. With a
// strict gate, each check that could not run also becomes an open result.
func SARIF(w io.Writer, r doctor.Report, checks []engine.Check, gate Gate, version string) error {
	run := sarifRun{ColumnKind: "unicodeCodePoints", Results: []sarifResult{}}
	run.Tool.Driver = sarifDriver{
		Name: "kubectl-gpu-fault", Version: strings.TrimPrefix(version, "v"), InformationURI: home,
		Rules: []sarifRule{},
	}
	index := map[string]int{}
	for _, c := range checks {
		index[c.ID] = len(run.Tool.Driver.Rules)
		run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifRuleOf(c))
	}
	for i, f := range r.Items {
		if !f.Root {
			continue
		}
		if _, known := index[f.ID]; !known { // the ID of a finding may differ from its check's ID
			index[f.ID] = len(run.Tool.Driver.Rules)
			run.Tool.Driver.Rules = append(run.Tool.Driver.Rules,
				sarifRuleOf(engine.Check{ID: f.ID, Layer: f.Layer, Title: f.Title, Doc: f.Doc}))
		}
		run.Results = append(run.Results, sarifResultOf(r, i, index[f.ID]))
	}
	if gate.Strict {
		for _, c := range checks {
			if unknown := of(NotChecked(r), c.ID); len(unknown) > 0 {
				run.Results = append(run.Results, sarifNotChecked(c, index[c.ID], unknown))
			}
		}
	}
	invocation := sarifInvocation{
		ExecutionSuccessful: true, EndTimeUTC: r.Created.UTC().Format("2006-01-02T15:04:05Z"),
		Notifications: []sarifNotification{},
	}
	for _, b := range Blinds(r) {
		n := sarifNotification{
			Level: "note", Message: sarifText{Text: "could not check: " + reason(b)},
			Properties: map[string]any{"checks": b.Checks},
		}
		if len(b.Checks) == 1 {
			n.AssociatedRule = &sarifRuleRef{b.Checks[0]}
		}
		invocation.Notifications = append(invocation.Notifications, n)
	}
	run.Invocations = []sarifInvocation{invocation}
	raw, err := json.MarshalIndent(sarifLog{Schema: sarifSchema, Version: "2.1.0", Runs: []sarifRun{run}}, "", "  ")
	if err != nil {
		return fmt.Errorf("print as sarif: %w", err)
	}
	_, err = fmt.Fprintf(printer.Escaping(w), "%s\n", raw)
	return err
}

// Sources returns the sources that document a check's failure, except those that are not public.
func Sources(c engine.Check) []string {
	return slices.DeleteFunc(slices.Clone(c.Sources),
		func(source string) bool { return strings.HasPrefix(source, "seed ") })
}

func sarifRuleOf(c engine.Check) sarifRule {
	why := cmp.Or(c.Why, c.Title)
	help := fmt.Sprintf("Reads: %s\n\nWhy: %s", cmp.Or(c.Reads, "the snapshot"), why)
	markdown := fmt.Sprintf("**Reads:** %s\n\n**Why:** %s", cmp.Or(c.Reads, "the snapshot"), why)
	if sources := Sources(c); len(sources) > 0 {
		help += "\n\nSeen in: " + strings.Join(sources, ", ")
		markdown += "\n\n**Seen in:** " + strings.Join(sources, ", ")
	}
	return sarifRule{
		ID: c.ID, ShortDescription: sarifText{Text: full(c.Title)}, FullDescription: sarifText{Text: full(why)},
		Help: sarifText{Text: help, Markdown: markdown}, HelpURI: c.Doc,
		Properties: map[string]any{"tags": []string{"gpu", string(c.Layer)}},
	}
}

// sarifNotChecked returns a result for a check that could not reach a conclusion. SARIF's kind "open" means that there
// was not enough information.
func sarifNotChecked(c engine.Check, rule int, unknown []engine.Unknown) sarifResult {
	return sarifResult{
		RuleID: c.ID, RuleIndex: rule, Kind: "open", Level: "none",
		Message:   sarifText{Text: "not checked: " + reasons(unknown)},
		Locations: []sarifLocation{}, Fingerprints: map[string]string{"object/v1": c.ID + " not checked"},
		Properties: map[string]any{"layer": c.Layer},
	}
}

func sarifResultOf(r doctor.Report, i, rule int) sarifResult {
	f := r.Items[i]
	all := objects(f)
	result := sarifResult{
		RuleID: f.ID, RuleIndex: rule,
		Level:        map[finding.Severity]string{finding.Error: "error", finding.Warning: "warning"}[f.Severity],
		Message:      sarifText{Text: plain(r, i)},
		Locations:    []sarifLocation{},
		Fingerprints: map[string]string{"object/v1": f.ID + " " + f.Object.String()},
	}
	result.Level = cmp.Or(result.Level, "note")
	for _, o := range all[:min(len(all), maxLocations)] {
		result.Locations = append(result.Locations,
			sarifLocation{[]sarifLogical{{Name: cmp.Or(o.Name, o.Kind), Full: o.String(), Kind: "resource"}}})
	}
	consequences := []string{}
	for _, c := range Consequences(r, i) {
		if id := r.Items[c].ID; !slices.Contains(consequences, id) {
			consequences = append(consequences, id)
		}
	}
	result.Properties = map[string]any{
		"layer": f.Layer, "confidence": f.Confidence, "evidence": f.Evidence, "fix": f.Fix,
		"consequences": consequences, "objects": len(all),
	}
	return result
}
