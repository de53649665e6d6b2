// Command clusterkit is what the test cluster's scripts cannot do in shell: keys and
// certificates, image archives, waiting on the API. Standard library only.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster/tools/inventory"
)

var commands = map[string]func(args []string) error{
	"dial":      dial,
	"fakenodes": fakeNodes,
	"image":     image,
	"inventory": showInventory,
	"pki":       writePKI,
	"wait":      wait,
}

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		log.Fatal("usage: clusterkit dial|fakenodes|image|inventory|pki|wait [ARG]...")
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		log.Fatalf("clusterkit %s: %v", os.Args[1], err)
	}
}

// dial succeeds when somebody accepts connections:
//
//	clusterkit dial unix /run/containerd/containerd.sock
func dial(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: clusterkit dial NETWORK ADDRESS")
	}
	c, err := net.DialTimeout(args[0], args[1], time.Second)
	if err != nil {
		return err
	}
	return c.Close()
}

// showInventory prints what the scripts need of the simulated GPUs:
//
//	clusterkit inventory -json node-a node-b    everything
//	clusterkit inventory -labels node-a         node labels, for the kubelet
//	clusterkit inventory -minors node-a         device minors, one a line
//	clusterkit inventory -bus-pattern node-a    a regular expression of its buses
//	clusterkit inventory -driver DIR node-a     writes what /proc/driver holds
func showInventory(args []string) error {
	f := flag.NewFlagSet("inventory", flag.ExitOnError)
	asJSON := f.Bool("json", false, "everything, as JSON")
	labels := f.Bool("labels", false, "node labels, with commas")
	minors := f.Bool("minors", false, "device minors, one a line")
	buses := f.Bool("bus-pattern", false, "a regular expression")
	driver := f.String("driver", "", "write the files of /proc/driver here")
	domain := f.String("domain", "0000", "PCI domain of the GPUs")
	_ = f.Parse(args)
	var nodes []inventory.Node
	for _, name := range f.Args() {
		n, err := inventory.Of(name, *domain)
		if err != nil {
			return err
		}
		nodes = append(nodes, n)
	}
	if *asJSON {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(nodes)
	}
	for _, n := range nodes {
		switch {
		case *labels:
			fmt.Println(strings.Join(n.Labels(), ","))
		case *buses:
			fmt.Println(n.BusPattern())
		case *minors:
			for _, g := range n.GPUs {
				fmt.Println(g.Minor)
			}
		case *driver != "":
			if err := n.WriteDriver(*driver); err != nil {
				return err
			}
		}
	}
	return nil
}
