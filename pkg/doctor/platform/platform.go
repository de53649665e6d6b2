// Package platform knows what the operating systems and Kubernetes distributions of nodes bring themselves, and how
// commands reach a node. platforms.yaml has the knowledge.
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

// Platform is what is known of one platform.
type Platform struct {
	Name string `json:"name"`
	// Shell is how a command reaches the shell of a node. Empty means ssh, unless Instead has replacements: then the
	// node has no shell.
	Shell   string    `json:"shell,omitempty"`
	Instead []Instead `json:"instead,omitempty"`
	Note    string    `json:"note,omitempty"` // what cannot be done on the platform
	// Driver is how the platform installs the NVIDIA driver, and Plugin how it advertises GPUs without a DaemonSet.
	Driver Driver `json:"driver,omitzero"`
	Plugin string `json:"plugin,omitempty"`
	// Fabric is how a node gets the Fabric Manager, if nobody can install its package there.
	Fabric string `json:"fabric,omitempty"`
	// CNIPlugins is the directory of the CNI plugins if it is not /opt/cni/bin.
	CNIPlugins string `json:"cniPlugins,omitempty"`
}

// Instead is a command that does on a platform what another command does elsewhere.
type Instead struct {
	Match   string `json:"match"`
	Command string `json:"command"`
}

// Driver is how a platform installs the NVIDIA driver.
type Driver struct {
	Fix      string   `json:"fix"`
	Commands []string `json:"commands,omitempty"`
	// Newer is how a node gets a newer driver.
	Newer string `json:"newer,omitempty"`
}

// known is what the table says.
type known struct {
	platforms map[string]Platform
	gpuTypes  []*regexp.Regexp
}

// all is the table. It is tested, so it has no errors.
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

// HasGPUs reports whether a cloud's instance type has NVIDIA GPUs.
func HasGPUs(instanceType string) bool {
	return slices.ContainsFunc(all().gpuTypes, func(re *regexp.Regexp) bool { return re.MatchString(instanceType) })
}

// Of returns what is known of a platform.
func Of(name string) (Platform, bool) {
	p, ok := all().platforms[name]
	return p, ok
}

// On returns the command that does on a node of the platform what command does in a shell of the node. ok is false if
// there is none.
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

// UsesSSH reports whether the shell of the platform's nodes is reached with ssh.
func (p Platform) UsesSSH() bool { return p.HasShell() && p.Shell == "" }
