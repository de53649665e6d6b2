package nvidiasmi

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// Parse reads the output of `nvidia-smi -q -x`, even if other lines surround the XML, for example because nvidia-smi
// cannot query a GPU. It rejects outputs larger than [MaxSize], or with more elements than any node can have.
//
// For truncated output, Parse returns the part that could be read, and an error. The Log is nil only if nothing could
// be read.
func Parse(raw []byte) (*Log, error) {
	if len(raw) > MaxSize {
		return nil, fmt.Errorf("the output of nvidia-smi is longer than %d MiB", MaxSize>>20)
	}
	before, doc, after := split(raw)
	notes := append(lines(before), lines(after)...)
	if doc == nil {
		if len(notes) == 0 {
			return nil, errors.New("the output of nvidia-smi is empty")
		}
		return &Log{Notes: notes, GPUs: []GPU{}}, errors.New("the output of nvidia-smi contains no XML")
	}
	root, err := read(doc)
	if root == nil || root.name != "nvidia_smi_log" {
		if err == nil {
			err = errors.New("the root element is not <nvidia_smi_log>")
		}
		return nil, fmt.Errorf("parse the output of nvidia-smi: %w", err)
	}
	log := &Log{
		Timestamp: root.word("timestamp"), Driver: root.word("driver_version"), CUDA: root.word("cuda_version"),
		Attached: root.number("attached_gpus"), Notes: notes, GPUs: []GPU{},
	}
	for _, e := range root.all("gpu") {
		log.GPUs = append(log.GPUs, gpu(e))
	}
	if err != nil {
		if last := len(log.GPUs); last > 0 { // the last GPU is incomplete
			log.GPUs = log.GPUs[:last-1]
		}
		return log, fmt.Errorf("parse the rest of the output of nvidia-smi: %w", err)
	}
	return log, nil
}

// split finds the XML.
func split(raw []byte) (before, doc, after []byte) {
	start := bytes.Index(raw, []byte("<?xml"))
	if start < 0 {
		start = bytes.Index(raw, []byte("<nvidia_smi_log"))
	}
	if start < 0 {
		return raw, nil, nil
	}
	const last = "</nvidia_smi_log>"
	end := bytes.LastIndex(raw, []byte(last))
	if end < start {
		return raw[:start], raw[start:], nil
	}
	end += len(last)
	return raw[:start], raw[start:end], raw[end:]
}

// maxNotes is the maximum number of other lines to keep.
const maxNotes = 32

func lines(raw []byte) []string {
	var all []string
	for line := range bytes.Lines(raw) {
		if line = bytes.TrimSpace(line); len(line) > 0 && len(all) < maxNotes {
			all = append(all, strings.ToValidUTF8(string(line[:min(len(line), maxText)]), "\uFFFD"))
		}
	}
	return all
}

func gpu(e *element) GPU {
	g := GPU{
		ID: e.id, UUID: e.word("uuid"), Serial: e.word("serial"), Minor: e.number("minor_number"),
		Product: e.word("product_name"),
		Brand:   e.word("product_brand"), Architecture: e.word("product_architecture"),
		Persistence: e.flag("persistence_mode"),
		ComputeMode: e.word("compute_mode"), Virtualization: e.word("gpu_virtualization_mode/virtualization_mode"),
		GSPFirmware: e.word("gsp_firmware_version"), RecoveryAction: e.word("gpu_recovery_action"),
		ResetRequired: e.flag("gpu_reset_status/reset_required"),
		DrainAndReset: e.flag("gpu_reset_status/drain_and_reset_recommended"),
		MIG:           mig(e), ECC: ecc(e), Retired: retired(e.at("retired_pages")),
		Remapped: remapped(e.at("remapped_rows")),
		PCIe:     pcie(e.at("pci")),
		Slowdown: slowdown(e), Temperature: temperature(e.at("temperature")),
		Utilization: utilization(e.at("utilization")),
		MemoryUsed:  e.number("fb_memory_usage/used"), MemoryTotal: e.number("fb_memory_usage/total"),
		Fabric: Fabric{
			e.word("fabric/state"), e.word("fabric/status"), e.word("fabric/cliqueId"), e.word("fabric/clusterUuid"),
			e.word("fabric/health/summary"),
		},
		License: License{
			e.word("vgpu_software_licensed_product/licensed_product_name",
				"grid_licensed_product/licensed_product_name"),
			e.word("vgpu_software_licensed_product/license_status", "grid_licensed_product/license_status"),
		},
	}
	if g.ID == "" {
		g.ID = e.word("pci/pci_bus_id")
	}
	if address, err := xid.ParsePCI(g.ID); err == nil {
		g.PCI = &address
	}
	for _, p := range e.at("processes").all("process_info") {
		if pid := p.number("pid"); pid != nil {
			g.Processes = append(g.Processes, Process{
				*pid, p.word("type"), p.word("process_name"), p.number("used_memory"), p.number("gpu_instance_id"),
				p.number("compute_instance_id"),
			})
		}
	}
	e.texts(func(text string) {
		if failed(text) && !slices.Contains(g.Errors, text) && len(g.Errors) < maxNotes {
			g.Errors = append(g.Errors, text)
		}
	})
	return g
}

func mig(e *element) MIG {
	m := MIG{Enabled: e.flag("mig_mode/current_mig"), Pending: e.flag("mig_mode/pending_mig")}
	for _, d := range e.at("mig_devices").all("mig_device") {
		m.Devices = append(m.Devices, MIGDevice{
			d.number("index"), d.number("gpu_instance_id"), d.number("compute_instance_id"),
			d.number("fb_memory_usage/used"), d.number("fb_memory_usage/total"),
		})
	}
	return m
}

func ecc(e *element) ECC {
	return ECC{
		Enabled: e.flag("ecc_mode/current_ecc"), Pending: e.flag("ecc_mode/pending_ecc"),
		Volatile: counts(e.at("ecc_errors/volatile")), Aggregate: counts(e.at("ecc_errors/aggregate")),
		SRAMThresholdExceeded: e.flag("ecc_errors/aggregate/sram_threshold_exceeded"),
		ChannelRepairPending:  e.flag("ecc_errors/channel_repair_pending"),
		TPCRepairPending:      e.flag("ecc_errors/tpc_repair_pending"),
		UnrepairableMemory:    e.flag("ecc_errors/unrepairable_memory"),
	}
}

func counts(e *element) Counts {
	c := Counts{
		SRAMCorrectable: e.number("sram_correctable"),
		SRAMUncorrectable: sumOf(e.number("sram_uncorrectable"), e.number("sram_uncorrectable_parity"),
			e.number("sram_uncorrectable_secded")),
		DRAMCorrectable: e.number("dram_correctable"), DRAMUncorrectable: e.number("dram_uncorrectable"),
	}
	if single := e.at("single_bit"); single != nil {
		c.SRAMCorrectable, c.DRAMCorrectable = sram(single), single.number("device_memory")
	}
	if double := e.at("double_bit"); double != nil {
		c.SRAMUncorrectable, c.DRAMUncorrectable = sram(double), double.number("device_memory")
	}
	return c
}

func sram(e *element) *int64 {
	return sumOf(e.number("register_file"), e.number("l1_cache"), e.number("l2_cache"), e.number("texture_memory"),
		e.number("texture_shm"), e.number("cbu"))
}

func retired(e *element) Retired {
	return Retired{
		e.number("multiple_single_bit_retirement/retired_count"), e.number("double_bit_retirement/retired_count"),
		e.flag("pending_retirement", "pending_blacklist"),
	}
}

func remapped(e *element) *Remapped {
	if e == nil || len(e.children) == 0 {
		return nil
	}
	r := &Remapped{
		e.number("remapped_row_corr"), e.number("remapped_row_unc"), e.flag("remapped_row_pending"),
		e.flag("remapped_row_failure"), nil,
	}
	if h := e.at("row_remapper_histogram"); h != nil {
		bank := func(left string) *int64 { return h.number("row_remapper_histogram_" + left) }
		r.Banks = &Histogram{bank("max"), bank("high"), bank("partial"), bank("low"), bank("none")}
	}
	return r
}

func pcie(e *element) PCIe {
	const generation, width = "pci_gpu_link_info/pcie_gen/", "pci_gpu_link_info/link_widths/"
	return PCIe{
		e.number(generation + "current_link_gen"), e.number(generation + "max_link_gen"),
		e.number(generation + "max_device_link_gen"),
		e.number(generation + "max_host_link_gen"), e.number(width + "current_link_width"),
		e.number(width + "max_link_width"),
		e.number("replay_counter"), e.number("replay_rollover_counter"),
	}
}

func slowdown(e *element) Slowdown {
	flag := func(reason string) *bool {
		return e.flag("clocks_event_reasons/clocks_event_reason_"+reason,
			"clocks_throttle_reasons/clocks_throttle_reason_"+reason)
	}
	return Slowdown{
		flag("gpu_idle"), flag("sw_power_cap"), flag("hw_slowdown"), flag("hw_thermal_slowdown"),
		flag("hw_power_brake_slowdown"),
		flag("sw_thermal_slowdown"),
	}
}

func temperature(e *element) Temperature {
	return Temperature{
		e.number("gpu_temp"), e.number("gpu_temp_slow_threshold"), e.number("gpu_temp_max_threshold"),
		e.number("gpu_temp_tlimit"),
		e.number("gpu_temp_slow_tlimit_threshold"), e.number("gpu_temp_max_tlimit_threshold"), e.number("memory_temp"),
	}
}

func utilization(e *element) *Utilization {
	u := &Utilization{e.number("gpu_util"), e.number("memory_util")}
	if u.GPU == nil && u.Memory == nil {
		return nil
	}
	return u
}
