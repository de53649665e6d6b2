package cuda

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// profileList is the output of `cuda profiles -o json`.
type profileList struct {
	APIVersion string        `json:"apiVersion"`
	Kind       string        `json:"kind"`
	Items      []profileView `json:"items"`
}

// profileView is a profile with the names of its error codes.
type profileView struct {
	XID         int            `json:"xid,omitempty"`
	Name        string         `json:"name"`
	Description string         `json:"description"`
	Injectable  bool           `json:"injectable"`        // false if programs do not see the XID; the note explains why
	Running     *runningView   `json:"running,omitempty"` // in running processes
	New         *codeView      `json:"new,omitempty"`     // returned by cuInit in processes that start afterwards
	NVML        *codeView      `json:"nvml,omitempty"`    // returned by NVML calls for the device
	NVMLInit    *codeView      `json:"nvmlInit,omitempty"`
	NVMLEvent   bool           `json:"nvmlEvent"`          // whether the driver sends an NVML event with the XID
	NVMLECC     int            `json:"nvmlECC,omitempty"`  // uncorrectable ECC errors in NVML's counters
	NVMLRows    string         `json:"nvmlRows,omitempty"` // row remapping state in NVML: remapped, pending, failed
	Evidence    []evidenceView `json:"evidence"`
	Note        string         `json:"note,omitempty"`
}

type codeView struct {
	Code  int             `json:"code"`
	Name  string          `json:"name"`
	Basis cudafault.Basis `json:"basis,omitempty"`
}

type runningView struct {
	codeView
	RuntimeName    string            `json:"runtimeName,omitempty"`
	Sticky         bool              `json:"sticky"`
	Surface        cudafault.Surface `json:"surface"`
	Classes        []string          `json:"classes"`
	Fallback       *fallbackView     `json:"fallback,omitempty"`
	Latency        string            `json:"latency,omitempty"`
	LatencyClasses []string          `json:"latencyClasses,omitempty"`
	HangClasses    []string          `json:"hangClasses,omitempty"`
}

// fallbackView is the code returned by drivers that are too old to know the main code.
type fallbackView struct {
	codeView
	BelowDriver int `json:"belowDriver"` // cuDriverGetVersion
}

type evidenceView struct {
	Source string `json:"source"`
	URL    string `json:"url,omitempty"`
}

func newProfilesCommand(streams genericiooptions.IOStreams) *cobra.Command {
	var format printer.Format
	cmd := &cobra.Command{
		Use:   "profiles [XID...]",
		Short: "List the effects of each XID on programs, and the source of each effect",
		Long: `List how each XID affects programs: the CUDA errors in running processes and in new ones, and what NVML
reports (an event with the XID, ECC errors, remapped rows, or an error). "inject --xid" simulates these effects.

(assumed) marks errors derived from the meaning of the XID. All others are documented or were reported; -o wide, json and yaml show the
sources.`,
		Example: `  # List all profiles
  kubectl gpu-fault cuda profiles

  # List two profiles, including the failing calls, sources and notes
  kubectl gpu-fault cuda profiles 79 94 -o wide`,
		RunE: func(_ *cobra.Command, args []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			profiles, err := selectProfiles(args)
			if err != nil {
				return err
			}
			if format.IsTable() {
				return profileTable(profiles, format).Write(streams.Out)
			}
			list := profileList{APIVersion: ledger.APIVersion, Kind: "CUDAProfileList"}
			var names []string
			for _, p := range profiles {
				list.Items = append(list.Items, viewOf(p))
				names = append(names, "cudaprofile/"+p.Name)
			}
			return format.Object(streams.Out, list, names...)
		},
		ValidArgsFunction: func(
			_ *cobra.Command, args []string, prefix string,
		) ([]cobra.Completion, cobra.ShellCompDirective) {
			var words []cobra.Completion
			for _, p := range cudafault.Profiles() {
				if strings.HasPrefix(p.Name, prefix) && !slices.Contains(args, p.Name) {
					words = append(words, cobra.CompletionWithDesc(p.Name, p.Description))
				}
			}
			return words, cobra.ShellCompDirectiveNoFileComp
		},
	}
	format.AddFlags(cmd)
	return cmd
}

// selectProfiles returns the named profiles in the given order, or all profiles if names is empty.
func selectProfiles(names []string) ([]cudafault.Profile, error) {
	if len(names) == 0 {
		return cudafault.Profiles(), nil
	}
	var profiles []cudafault.Profile
	for name := range strings.SplitSeq(strings.Join(names, ","), ",") {
		p, ok := cudafault.NamedProfile(name)
		if !ok {
			if _, err := strconv.Atoi(name); err == nil {
				return nil, fmt.Errorf(
					"profile for XID %s not found: its effects on programs are unknown; `kubectl gpu-fault cuda profiles` lists the known XIDs",
					name,
				)
			}
			return nil,
				fmt.Errorf("profile %q not found: supported values: XIDs, fabric-not-ready, driver-mismatch", name)
		}
		profiles = append(profiles, p)
	}
	return profiles, nil
}

func profileTable(profiles []cudafault.Profile, format printer.Format) *printer.Table {
	table := &printer.Table{
		Header:   []string{"XID", "RUNNING PROCESS", "NEW PROCESS", "NVML", "SURFACES", "EVIDENCE", "DESCRIPTION"},
		NoHeader: format.NoHeader,
	}
	if format.IsWide() {
		table.Header = []string{
			"XID", "RUNNING PROCESS", "NEW PROCESS", "NVML", "SURFACES", "STICKY", "CLASSES", "DESCRIPTION", "SOURCES",
			"NOTE",
		}
	}
	for _, p := range profiles {
		surfaces, sticky, classes := "", "", ""
		if p.Running != 0 {
			surfaces, sticky, classes = p.Surface.String(), "no", p.Classes.String()
			if p.Sticky {
				sticky = "yes"
			}
		}
		cells := []string{
			p.Name, runningCell(p), assumed(cudaCell(p.New), p.NewBasis), nvmlCell(p), surfaces,
		}
		if format.IsWide() {
			cells = append(cells, sticky, classes, p.Description, strings.Join(p.Evidence, ", "), p.Note)
		} else {
			cells = append(cells, strconv.Itoa(len(p.Evidence)), p.Description)
		}
		table.Add(cells...)
	}
	return table
}

// runningCell returns the error in running processes, such as "226 contained, 214 before CUDA 12.8 (assumed)".
func runningCell(p cudafault.Profile) string {
	text := cudaCell(p.Running)
	if p.Latency > 0 {
		text += " after " + p.Latency.String()
	}
	if p.Fallback != 0 {
		text += fmt.Sprintf(", %d before CUDA %d.%d", p.Fallback, p.MinDriver/1000, p.MinDriver%1000/10)
	}
	if p.HangClasses != 0 {
		text += ", then hang"
	}
	return assumed(text, p.RunningBasis)
}

func cudaCell(code int) string {
	if code == 0 {
		return ""
	}
	return fmt.Sprintf("%d %s", code, typed(cudafault.ErrorName(code), "CUDA_ERROR_"))
}

// nvmlCell returns a description of what NVML reports, such as "event, ecc, 16 reset-required (assumed)".
func nvmlCell(p cudafault.Profile) string {
	var parts []string
	if p.NVMLEvent {
		parts = append(parts, "event")
	}
	if p.NVMLECC != 0 {
		parts = append(parts, "ecc")
	}
	if p.NVMLRows != 0 {
		parts = append(parts, strings.ReplaceAll(p.NVMLRows.String(), ",", ", "))
	}
	for _, code := range []struct {
		code  int
		where string
	}{{p.NVMLInit, " (nvmlInit)"}, {p.NVML, ""}} {
		if code.code != 0 {
			name := typed(cudafault.NVMLErrorName(code.code), "NVML_ERROR_")
			parts = append(parts, assumed(fmt.Sprintf("%d %s%s", code.code, name, code.where), p.NewBasis))
		}
	}
	return strings.Join(parts, ", ")
}

func assumed(text string, basis cudafault.Basis) string {
	if basis == cudafault.Assumed {
		return text + " (assumed)"
	}
	return text
}

func viewOf(p cudafault.Profile) profileView {
	v := profileView{XID: p.XID, Name: p.Name, Description: p.Description, Injectable: !p.None(), Note: p.Note,
		NVMLEvent: p.NVMLEvent, NVMLECC: p.NVMLECC, NVMLRows: p.NVMLRows.String()}
	if p.Running != 0 {
		v.Running = &runningView{
			codeView:    codeView{p.Running, cudafault.ErrorName(p.Running), p.RunningBasis},
			RuntimeName: cudafault.RuntimeErrorName(p.Running),
			Sticky:      p.Sticky, Surface: p.Surface, Classes: p.Classes.Names(),
			LatencyClasses: p.LatencyClasses.Names(),
			HangClasses:    p.HangClasses.Names(),
		}
		if p.Fallback != 0 {
			v.Running.Fallback = &fallbackView{
				codeView{Code: p.Fallback, Name: cudafault.ErrorName(p.Fallback)}, p.MinDriver,
			}
		}
		if p.Latency > 0 {
			v.Running.Latency = p.Latency.String()
		}
	}
	if p.New != 0 {
		v.New = &codeView{p.New, cudafault.ErrorName(p.New), p.NewBasis}
	}
	if p.NVML != 0 {
		v.NVML = &codeView{p.NVML, cudafault.NVMLErrorName(p.NVML), p.NewBasis}
	}
	if p.NVMLInit != 0 {
		v.NVMLInit = &codeView{p.NVMLInit, cudafault.NVMLErrorName(p.NVMLInit), p.NewBasis}
	}
	for _, source := range p.Evidence {
		v.Evidence = append(v.Evidence, evidenceView{source, cudafault.EvidenceURL(source)})
	}
	return v
}
