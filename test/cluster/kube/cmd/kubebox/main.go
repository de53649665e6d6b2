// Command kubebox is every long-running piece of a Kubernetes node in one
// executable, picked by the name it is called by (argv[0]) or by its first
// argument. One link instead of eight, and the packages that
// kube-apiserver, kubelet, containerd and etcd share are in the file once.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// applets maps the name a binary is called by to its main function.
var applets = map[string]func() int{
	"containerd": containerd, "ctr": ctr,
	"etcd":           etcd,
	"kube-apiserver": kubeAPIServer, "kube-controller-manager": kubeControllerManager, "kube-scheduler": kubeScheduler,
	"kube-proxy": kubeProxy, "kubelet": kubelet, "kubectl": kubectl,
	"kwok": kwok,
}

func main() {
	name := filepath.Base(os.Args[0])
	run, ok := applets[name]
	if !ok && len(os.Args) > 1 {
		name = os.Args[1]
		if run, ok = applets[name]; ok {
			os.Args = append([]string{name}, os.Args[2:]...)
		}
	}
	if !ok {
		names := make([]string, 0, len(applets))
		for n := range applets {
			names = append(names, n)
		}
		sort.Strings(names)
		fmt.Fprintf(os.Stderr, "usage: kubebox APPLET [ARG]...\napplets: %s\n", strings.Join(names, " "))
		os.Exit(2)
	}
	os.Exit(run())
}
