//go:build e2e

package containerd_test

import (
	"fmt"
	"strings"
)

// The plugin tables in which releases have looked for handlers.
const (
	shortID   = "cri"                          // version 1
	grpcID    = "io.containerd.grpc.v1.cri"    // version 2
	runtimeID = "io.containerd.cri.v1.runtime" // versions 3 and 4
)

const (
	pause  = "registry.k8s.io/pause:3.10"
	nvidia = "/usr/local/nvidia/toolkit/nvidia-container-runtime" // simulated, see test/cluster
)

// root returns the beginning of a root file: what a daemon of the tests needs to live beside others. Version 0 writes
// none.
func root(version int, imports ...string) string {
	var b strings.Builder
	if version > 0 {
		fmt.Fprintf(&b, "version = %d\n", version)
	}
	fmt.Fprintf(&b, "root = '@DIR@/root'\nstate = '@DIR@/state'\n")
	if len(imports) > 0 {
		fmt.Fprintf(&b, "imports = ['%s']\n", strings.Join(imports, "', '"))
	}
	if version == 4 {
		b.WriteString("[plugins.'io.containerd.server.v1.grpc']\n  address = '@DIR@/containerd.sock'\n")
		b.WriteString("[plugins.'io.containerd.server.v1.ttrpc']\n  address = '@DIR@/containerd.sock.ttrpc'\n")
	} else {
		b.WriteString("[grpc]\n  address = '@DIR@/containerd.sock'\n")
	}
	return b.String()
}

// settings returns those of CRI without which no sandbox runs here: no network for the image, and a root user that may
// not lower oom_score_adj.
func settings(plugin string) string {
	if plugin == runtimeID {
		return "[plugins.'io.containerd.cri.v1.images'.pinned_images]\n  sandbox = '" + pause + "'\n" +
			"[plugins.'" + runtimeID + "']\n  restrict_oom_score_adj = true\n"
	}
	return "[plugins.'" + plugin + "']\n  sandbox_image = '" + pause + "'\n  restrict_oom_score_adj = true\n"
}

// handler returns a runtime handler; binary "" leaves BinaryName out.
func handler(plugin, name, binary string) string {
	text :=
		fmt.Sprintf("[plugins.'%[1]s'.containerd.runtimes.%[2]s]\n  runtime_type = 'io.containerd.runc.v2'\n[plugins.'%[1]s'.containerd.runtimes.%[2]s.options]\n  SystemdCgroup = false\n",
			plugin, name)
	if binary != "" {
		text += "  BinaryName = '" + binary + "'\n"
	}
	return text
}

// healthy returns a node's configuration as it should be, in the schema that is usual with the daemon.
func healthy(d daemon) string {
	return root(d.version, "@DIR@/conf.d/*.toml") + settings(d.plugin) + handler(d.plugin, "runc", "") +
		handler(d.plugin, "nvidia", nvidia)
}
