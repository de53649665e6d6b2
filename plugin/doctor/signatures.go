package doctor

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/suggest"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/doctor/report"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// maxSignatureFile is the maximum size of a signature file in bytes.
const maxSignatureFile = 4 << 20

// readSignatures reads the user's own signatures. It returns nil if the name is empty.
func readSignatures(file string) ([]*signatures.Signature, error) {
	if file == "" {
		return nil, nil
	}
	opened, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("--signatures: %w", err)
	}
	defer func() { _ = opened.Close() }() // read only
	raw, err := io.ReadAll(io.LimitReader(opened, maxSignatureFile+1))
	if err != nil {
		return nil, fmt.Errorf("--signatures: %w", err)
	}
	if len(raw) > maxSignatureFile {
		return nil, fmt.Errorf("--signatures %q: must be at most %d bytes", file, maxSignatureFile)
	}
	all, err := signatures.Parse(file, raw)
	if err != nil {
		return nil, fmt.Errorf(
			"--signatures: %w; for an example, run: kubectl gpu-fault doctor signatures --help",
			err,
		)
	}
	return all, nil
}

// signatureList is the output of `doctor signatures -o json`.
type signatureList struct {
	APIVersion string                  `json:"apiVersion"`
	Kind       string                  `json:"kind"`
	Items      []*signatures.Signature `json:"items"`
}

// newSignaturesCommand returns `doctor signatures`.
func newSignaturesCommand(streams genericiooptions.IOStreams) *cobra.Command {
	var format printer.Format
	cmd := &cobra.Command{
		Use:   "signatures [ID]",
		Short: "List the error messages that doctor recognizes, with the meaning of each",
		Long: `List the error messages that doctor recognizes, with the meaning of each. A finding about a symptom, such as a crashing pod, takes its
title, cause and fix from the signature that matches the pod's messages.

doctor --signatures FILE adds your own. The file contains the list "signatures" with the same fields:

  signatures:
  - id: license-server-down
    match: 'license checkout failed: (\S+) unreachable'
    layer: workload
    title: the license server {1} is down
    cause: The program needs a license when it starts.
    confidence: likely
    fix: Start the license server, and recreate the pod.
    commands: ['kubectl -n {namespace} delete pod {pod}']
    sources: [internal wiki]
    example: 'license checkout failed: lic-1:27000 unreachable'

Optional fields: in (event, status, log, kernel, unit or spec; by default the first three), also and
unless (a line from the same pod that must, or must not, exist), platforms (a different fix on talos, gke,
eks, ...), runs (true if the message indicates a problem even if the pod is running), defect (the signature
applies only if the failed pod, or else the cluster, runs a release of a program with the defect; {version}
is this release):

    defect: {images: [example/scheduler], since: v1.2.0, fixed: [v1.3.4, v1.4.1]}

also, unless and in: [spec] can also match facts about the pod and its node, one per line:

  pod: NAMESPACE/NAME
  image: NAME                  runtimeClassName: NAME, or (none)
  env: NAME=VALUE              limit: RESOURCE=QUANTITY
  hostNetwork: true            privileged: true, capability: NAME
  owner: KIND                  annotation: KEY=VALUE
  probe: startup, liveness or readiness
  postStart: COMMAND
  runAsUser: NUMBER            supplementalGroups: NUMBERS
  fsGroup: NUMBER
  hostPath: PATH               claim: NAME (a resource claim)
  node kernel: VERSION         node os: NAME
  node kubelet: VERSION        node runtime: NAME://VERSION
  node platform: NAME          node type: INSTANCE TYPE
  node driver: VERSION
  node compute: CAPABILITY
  node ldconfig: PATH
  node extension: NAME VERSION (Talos)
  node label: nvidia.com/gpu.deploy.driver=pre-installed`,
		Example: `  kubectl gpu-fault doctor signatures

  # Show one signature
  kubectl gpu-fault doctor signatures shm-too-small-nccl

  # List all details as JSON
  kubectl gpu-fault doctor signatures -o json`,
		Args: usage.MaxArgs(1, "the ID of a signature", "kubectl gpu-fault doctor signatures shm-too-small-nccl"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			all := signatures.Builtin()
			if len(args) == 0 {
				return printSignatures(streams, format, all)
			}
			i := slices.IndexFunc(all, func(s *signatures.Signature) bool { return s.ID == args[0] })
			if i < 0 {
				return unknownSignature(args[0], all)
			}
			if !format.IsTable() {
				return printSignatures(streams, format, all[i:i+1])
			}
			showSignature(streams, all[i])
			return nil
		},
		ValidArgsFunction: func(
			_ *cobra.Command, args []string, prefix string,
		) ([]cobra.Completion, cobra.ShellCompDirective) {
			var words []cobra.Completion
			for _, s := range signatures.Builtin() {
				if len(args) == 0 && strings.HasPrefix(s.ID, prefix) {
					words = append(words, cobra.CompletionWithDesc(s.ID, s.Title))
				}
			}
			return words, cobra.ShellCompDirectiveNoFileComp
		},
	}
	format.AddFlags(cmd)
	return cmd
}

func unknownSignature(id string, all []*signatures.Signature) error {
	var ids []string
	for _, s := range all {
		ids = append(ids, s.ID)
	}
	if near := suggest.Nearest(id, ids); near != "" {
		return fmt.Errorf("signature %q not found: did you mean %s?", id, near)
	}
	return fmt.Errorf("signature %q not found; to list all, run: kubectl gpu-fault doctor signatures", id)
}

func printSignatures(streams genericiooptions.IOStreams, format printer.Format, all []*signatures.Signature) error {
	if format.IsTable() {
		table := printer.Table{Header: []string{"ID", "LAYER", "CONFIDENCE", "MEANS"}, NoHeader: format.NoHeader}
		for _, s := range all {
			table.Add(s.ID, string(s.Layer), string(s.Confidence), s.Title)
		}
		return table.Write(streams.Out)
	}
	list := signatureList{APIVersion: snapshot.APIVersion, Kind: "DoctorSignatureList", Items: all}
	var names []string
	for _, s := range all {
		names = append(names, s.ID)
	}
	return format.Object(streams.Out, list, names...)
}

func showSignature(streams genericiooptions.IOStreams, s *signatures.Signature) {
	width := report.WidthFor(printer.Width(streams.Out))
	section := func(name, text string) {
		if text == "" {
			return
		}
		fmt.Fprintf(streams.Out, "\n%s:\n", name)
		for line := range strings.Lines(text) {
			for _, part := range printer.WrapHanging("  "+strings.TrimRight(line, "\n"), width, "  ") {
				fmt.Fprintln(streams.Out, part)
			}
		}
	}
	for _, part := range printer.WrapHanging(s.ID+": "+s.Title, width, "  ") {
		fmt.Fprintln(streams.Out, part)
	}
	section("Layer", string(s.Layer))
	section("Cause", s.Cause+"\nConfidence: "+string(s.Confidence))
	section("Fix", strings.Join(append([]string{s.Fix}, s.Commands...), "\n"))
	for _, name := range slices.Sorted(maps.Keys(s.Platforms)) {
		section(
			"Fix on "+name,
			strings.Join(append([]string{s.Platforms[name].Fix}, s.Platforms[name].Commands...), "\n"),
		)
	}
	section("Matches", s.Match)
	section("Example", s.Example)
	section("Seen in", strings.Join(s.Sources, "\n"))
}
