// Package platform describes the built-in components of operating systems and Kubernetes distributions, and how to run
// commands on their nodes. The data is in platforms.yaml.
package platform

import (
	_ "embed"
	"regexp"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/yaml"
)

//go:embed platforms.yaml
var table []byte

// Platform describes one platform.
type Platform struct {
	Name string `json:"name"`
	// Shell is a command that opens a shell on a node. If Shell is empty and Instead has no replacements, ssh is used.
	// If Instead has replacements, nodes have no shell.
	Shell   string    `json:"shell,omitempty"`
	Instead []Instead `json:"instead,omitempty"`
	Note    string    `json:"note,omitempty"` // what is not possible on the platform
	// Driver describes how the platform installs the NVIDIA driver. Plugin describes how it advertises GPUs without a
	// DaemonSet.
	Driver Driver `json:"driver,omitzero"`
	Plugin string `json:"plugin,omitempty"`
	// DriverRoot is the directory in which the platform installs the driver if it is not the host's root.
	DriverRoot string `json:"driverRoot,omitempty"`
	// Fabric describes how to get the Fabric Manager on a node if its package cannot be installed there.
	Fabric string `json:"fabric,omitempty"`
	// CNIPlugins is the directory of the CNI plugins if it is not /opt/cni/bin.
	CNIPlugins string `json:"cniPlugins,omitempty"`
}

// Instead is the platform's replacement for a command that works on other platforms.
type Instead struct {
	Match   string `json:"match"`
	Command string `json:"command"`
}

// Driver describes how a platform installs the NVIDIA driver.
type Driver struct {
	Fix      string   `json:"fix"`
	Commands []string `json:"commands,omitempty"`
	// Newer describes how to get a newer driver on a node.
	Newer string `json:"newer,omitempty"`
}

// known is the content of the table.
type known struct {
	platforms map[string]Platform
	gpuTypes  []*regexp.Regexp
}

// all returns the parsed table. A test verifies that the table contains no errors.
var all = sync.OnceValue(func() known {
	k, _ := read()
	return k
})

func read() (k known, err error) {
	var file struct {
		Platforms     []Platform `json:"platforms"`
		InstanceTypes []string   `json:"instanceTypes"`
	}
	if err := yaml.UnmarshalStrict(table, &file); err != nil {
		return k, err
	}
	k.platforms = map[string]Platform{}
	for _, p := range file.Platforms {
		for _, i := range p.Instead {
			if _, err := regexp.Compile(i.Match); err != nil {
				return k, err
			}
		}
		k.platforms[p.Name] = p
	}
	for _, text := range file.InstanceTypes {
		re, err := regexp.Compile(text)
		if err != nil {
			return k, err
		}
		k.gpuTypes = append(k.gpuTypes, re)
	}
	return k, nil
}

// HasGPUs reports whether a cloud instance type has NVIDIA GPUs.
func HasGPUs(instanceType string) bool {
	return slices.ContainsFunc(all().gpuTypes, func(re *regexp.Regexp) bool { return re.MatchString(instanceType) })
}

// Of returns the platform with the given name.
func Of(name string) (Platform, bool) {
	p, ok := all().platforms[name]
	return p, ok
}

// On converts a command for a node's shell to a command that has the same effect on the platform. ok is false if there
// is none.
func (p Platform) On(node, command string) (line string, ok bool) {
	if p.Shell != "" {
		return strings.NewReplacer("{node}", node, "{command}", command).Replace(p.Shell), true
	}
	for _, i := range p.Instead {
		if m := regexp.MustCompile(i.Match).FindStringSubmatch(command); m != nil {
			pairs := []string{"{node}", node}
			if len(m) > 1 {
				pairs = append(pairs, "{1}", m[1])
			}
			return strings.NewReplacer(pairs...).Replace(i.Command), true
		}
	}
	return "", false
}

// HasShell reports whether the platform's nodes have a shell.
func (p Platform) HasShell() bool { return p.Shell != "" || len(p.Instead) == 0 }

// UsesSSH reports whether the shell on the platform's nodes is accessed with ssh.
func (p Platform) UsesSSH() bool { return p.HasShell() && p.Shell == "" }
