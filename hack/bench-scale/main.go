// Command bench-scale measures how the cost of commands grows with the number of nodes.
//
//	CLUSTER=second SUBNET=10.98.0 STATE=/tmp/second test/cluster/up
//	go run ./hack/bench-scale -state /tmp/second
//
// The nodes are fake kwok nodes with a real API server. Their pods execute the real node helper, which writes to the
// kernel log of a real node and reads it. Every node also has ten other pods. The client connects through a proxy in
// this program that counts requests and bytes. The wall time therefore includes the proxy, the API server, etcd and
// kwok, which share the processors with the client.
//
// The program stops the cluster's controller manager, which would consider all nodes dead without node leases. Node
// leases alone would use all processors. Delete the cluster afterwards.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
)

func main() {
	if len(os.Args) > 3 && os.Args[1] == launcher {
		if err := launched(os.Args[2], os.Args[3], os.Args[4:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	var b bench
	sizes := flag.String("sizes", "50,100,200,500,1000", "numbers of nodes, ascending")
	only := flag.String("only", "", "measure only these commands, such as list,doctor (default: all)")
	output := flag.String("o", "", "json: print the measurements as JSON instead of a table")
	svg := flag.String("svg", "", "also write the charts to this file")
	from := flag.String("from", "", "print the measurements in this file (written by -o json) without measuring again")
	flag.StringVar(&b.plugin, "plugin", "bin/kubectl-gpu_fault", "the program to measure")
	flag.StringVar(&b.state, "state", ".cluster", "state directory of a test cluster that only this program uses")
	flag.IntVar(&b.most, "pods-on", 1000, "maximum number of nodes on which commands start debug pods")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, &b, *sizes, *only, *output, *svg, *from); err != nil {
		fmt.Fprintln(os.Stderr, "bench-scale:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, b *bench, sizes, only, output, svg, from string) error {
	if output != "" && output != "json" {
		return fmt.Errorf("invalid value %q for -o: must be json", output)
	}
	var all []measurement
	var err error
	if from != "" {
		all, err = load(from)
	} else if b.sizes, err = parseSizes(sizes); err == nil {
		all, err = b.run(ctx, only)
	}
	if len(all) == 0 {
		return err
	}
	// After an error or Ctrl-C, report the measurements made until then.
	return errors.Join(show(all, output, svg), err)
}

func show(all []measurement, output, svg string) error {
	if svg != "" {
		if err := os.WriteFile(filepath.Clean(svg), []byte(draw(all)), 0o600); err != nil {
			return err
		}
	}
	if output == "json" {
		encoder := json.NewEncoder(os.Stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(all)
	}
	return report(os.Stdout, all)
}

func load(file string) (all []measurement, err error) {
	data, err := os.ReadFile(filepath.Clean(file))
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	return all, err
}

// parseSizes parses at least two numbers of nodes, because measuring growth requires two points.
func parseSizes(text string) (sizes []int, err error) {
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 || len(sizes) > 0 && n <= sizes[len(sizes)-1] {
			return nil, fmt.Errorf("invalid value %q for -sizes: must be ascending numbers, such as 50,100", text)
		}
		sizes = append(sizes, n)
	}
	if len(sizes) < 2 {
		return nil, fmt.Errorf("invalid value %q for -sizes: must be at least two numbers", text)
	}
	return sizes, nil
}
