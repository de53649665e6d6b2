package diagnose

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/pci"
)

const (
	pciDevices    = "/sys/bus/pci/devices"
	maxPCI        = 16384 // maximum number of devices to read
	maxGPUs       = 256   // maximum number of GPUs in the response
	vendorNVIDIA  = "0x10de"
	configSpace   = 4096 // bytes for a PCI Express device; the first 256 are the PCI configuration space
	configHeader  = 256
	maxCapability = 256 // maximum number of capabilities to follow; a corrupted list can be circular
)

// pci reads NVIDIA GPUs and NVSwitches. It skips their audio and USB functions.
func (d *diagnosing) pci(context.Context) (func(*api.Diagnosis), error) {
	entries, err := readEntries(d.root, pciDevices, maxPCI)
	if err == nil && entries == nil {
		err = fmt.Errorf("%s is empty or does not exist", pciDevices)
	}
	if err != nil {
		return nil, err
	}
	var devices []api.PCIDevice
	var wrong problems
	for _, e := range entries {
		full, err := d.root.Resolve(hostfs.Relative(pciDevices + "/" + e.Name()))
		if err != nil {
			wrong.add("%s: %w", e.Name(), err)
			continue
		}
		class := attribute(full, "class")
		if attribute(full, "vendor") != vendorNVIDIA || !isGPUClass(class) {
			continue
		}
		if len(devices) == maxGPUs {
			wrong.add("more than %d found", maxGPUs)
			break
		}
		device := api.PCIDevice{Address: e.Name(), Class: class, Device: attribute(full, "device")}
		device.LinkSpeed, device.MaxLinkSpeed = known(attribute(full, "current_link_speed")),
			known(attribute(full, "max_link_speed"))
		device.LinkWidth, device.MaxLinkWidth = lanes(attribute(full, "current_link_width")),
			lanes(attribute(full, "max_link_width"))
		if driver, err := os.Readlink(full + "/driver"); err == nil {
			device.Driver = filepath.Base(driver)
		}
		if device.ConfigReadable, err = configReadable(full); err != nil {
			wrong.add("read the configuration space of %s: %w", e.Name(), err)
		}
		device.ACSRedirect = redirectAbove(full)
		devices = append(devices, device)
	}
	return func(found *api.Diagnosis) { found.Probe.PCI = devices }, wrong.err()
}

// isGPUClass reports whether a PCI class is a VGA controller, a 3D controller, or a bridge (the class of NVSwitches).
func isGPUClass(class string) bool {
	return strings.HasPrefix(class, "0x0300") || strings.HasPrefix(class, "0x0302") ||
		strings.HasPrefix(class, "0x0680")
}

// attribute returns the content of a sysfs attribute.
func attribute(dir, name string) string {
	file, err := os.Open(dir + "/" + name)
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	raw, err := io.ReadAll(io.LimitReader(file, 256))
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(strings.TrimSpace(string(raw)), "\uFFFD")
}

// known returns the speed, or "" if sysfs reports it as "Unknown" or "Unknown speed".
func known(speed string) string {
	if strings.HasPrefix(speed, "Unknown") {
		return ""
	}
	return speed
}

// lanes returns the width of a link, or 0 if it is unknown. sysfs reports 255 for a device that does not respond.
func lanes(text string) int {
	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil || n > 32 {
		return 0
	}
	return int(n)
}

// configReadable reports whether the configuration space is readable. If a device does not respond, all bits read as
// ones. After an error, the result is unknown and reported as true.
func configReadable(dir string) (bool, error) {
	raw, err := readConfig(dir, 4)
	if err != nil {
		return true, err
	}
	if len(raw) < 4 {
		return true, errors.New("the configuration space is empty")
	}
	return binary.LittleEndian.Uint32(raw) != 0xffffffff, nil
}

func readConfig(dir string, most int64) ([]byte, error) {
	file, err := os.Open(dir + "/config")
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return io.ReadAll(io.LimitReader(file, most))
}

// redirectAbove reports whether a bridge between the device and its root bus has ACS request redirect enabled, which
// routes peer-to-peer traffic between GPUs through the CPU. It returns nil if there is no bridge, or if a bridge cannot
// be read and no other bridge has it enabled.
func redirectAbove(dir string) *bool {
	var off, unknown bool
	for up := filepath.Dir(dir); ; up = filepath.Dir(up) {
		if _, err := pci.Parse(filepath.Base(up)); err != nil { // pci0000:00 is the root bus
			break
		}
		raw, err := readConfig(up, configSpace)
		redirect, known := acsRedirect(raw)
		switch {
		case err != nil || !known:
			unknown = true
		case redirect:
			return &redirect
		default:
			off = true
		}
	}
	if unknown || !off {
		return nil
	}
	no := false
	return &no
}

// acsRedirect reports whether request redirect is enabled in the Access Control Services capability in the extended
// configuration space (PCI Express Base Specification, 7.7.11: capability 0x000d, control register at offset 6, bit 2
// is P2P Request Redirect Enable). known is false if the space could not be read: without privileges, the kernel
// returns only 64 bytes.
func acsRedirect(config []byte) (redirect, known bool) {
	if len(config) <= configHeader {
		return false, false
	}
	at := configHeader
	for range maxCapability {
		if at < configHeader || at+8 > len(config) {
			return false, false
		}
		head := binary.LittleEndian.Uint32(config[at:])
		if head == 0xffffffff {
			return false, false // the bridge does not respond
		}
		if head&0xffff == 0x000d {
			return binary.LittleEndian.Uint16(config[at+6:])&(1<<2) != 0, true
		}
		if at = int(head >> 20); at == 0 {
			return false, true // the bridge does not have the capability
		}
	}
	return false, false
}
