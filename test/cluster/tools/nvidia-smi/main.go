// Command nvidia-smi answers as the real one does on a node with idle H200s. Which
// GPUs there are it reads from /proc/driver/nvidia, as the simulated driver shows
// them there; all other values are those of a real capture (capture/README.md).
//
//	nvidia-smi [-L | -q [-x] | -r | --query-gpu=FIELDS --format=csv[,noheader][,nounits] | --version] [-i GPU]
//	           [-f FILE]
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"
)

const (
	driver = "590.48.01"
	nvml   = "590.48"
	cuda   = "13.1"
)

// Exit codes, from nvidia-smi's manual page.
const (
	exitBadArgument = 2
	exitNotFound    = 6
	exitNoDriver    = 9
)

// gpu is what differs from one GPU to the next.
type gpu struct {
	bus          string // lower case, with function: 0000:17:00.0
	uuid         string
	index, minor int
}

// BusID returns the bus as NVML writes it: 00000000:17:00.0.
func (g gpu) BusID() string { return "0000" + strings.ToUpper(g.bus) }

type options struct {
	list, query, xml, version, reset bool
	fields                           []string
	format, id, file                 string
}

func main() {
	var out bytes.Buffer
	o, code := parse(os.Args[1:], &out)
	if code == 0 {
		code = run(o, "/proc/driver/nvidia", &out)
	}
	var w io.Writer = os.Stdout
	if o.file != "" && code == 0 {
		f, err := os.Create(o.file)
		if err != nil {
			fmt.Printf("Failed to open file %s for writing\n", o.file)
			os.Exit(exitBadArgument)
		}
		defer f.Close()
		w = f
	}
	_, _ = w.Write(out.Bytes())
	os.Exit(code)
}

func parse(args []string, out io.Writer) (o options, code int) {
	// An option's value may follow it or an equals sign.
	value := func(i *int) string {
		if _, v, ok := strings.Cut(args[*i], "="); ok {
			return v
		}
		*i++
		if *i < len(args) {
			return args[*i]
		}
		return ""
	}
	for i := 0; i < len(args); i++ {
		switch name, _, _ := strings.Cut(args[i], "="); name {
		case "-L", "--list-gpus":
			o.list = true
		case "-q", "--query":
			o.query = true
		case "-x", "--xml-format":
			o.xml = true
		case "-r", "--gpu-reset":
			o.reset = true
		case "--version":
			o.version = true
		case "--query-gpu":
			o.fields = strings.Split(value(&i), ",")
		case "--format":
			o.format = value(&i)
		case "-i", "--id":
			o.id = value(&i)
		case "-f", "--filename":
			o.file = value(&i)
		default:
			fmt.Fprint(out, "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n")
			return o, exitBadArgument
		}
	}
	if o.xml && !o.query || o.fields != nil && (o.query || o.list) {
		fmt.Fprint(out, "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n")
		return o, exitBadArgument
	}
	return o, 0
}

func run(o options, proc string, out io.Writer) int {
	if o.version {
		fmt.Fprintf(out,
			"NVIDIA-SMI version  : %s\nNVML version        : %s\nDRIVER version      : %s\nCUDA Version        : %s\n",
			driver, nvml, driver, cuda)
		return 0
	}
	if _, err := os.Stat(filepath.Join(proc, "version")); err != nil {
		fmt.Fprint(out,
			"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.\n\n")
		return exitNoDriver
	}
	all := gpus(proc)
	if len(all) == 0 {
		fmt.Fprint(out, "No devices were found\n")
		return exitNotFound
	}
	chosen := all
	if o.id != "" {
		chosen = nil
		for _, id := range strings.Split(o.id, ",") {
			g, ok := find(all, id)
			if !ok {
				fmt.Fprint(out, "No devices were found\n")
				return exitNotFound
			}
			chosen = append(chosen, g)
		}
	}
	now := time.Now()
	switch {
	case o.reset:
		for _, g := range chosen {
			fmt.Fprintf(out, "GPU %s was successfully reset.\n", g.BusID())
		}
		fmt.Fprint(out, "All done.\n")
	case o.fields != nil:
		return queryGPU(out, chosen, len(all), o.fields, o.format, now)
	case o.list:
		for _, g := range chosen {
			fmt.Fprintf(out, "GPU %d: NVIDIA H200 (UUID: %s)\n", g.index, g.uuid)
		}
	case o.query && o.xml:
		queryXML(out, chosen, len(all), now)
	case o.query:
		queryText(out, chosen, len(all), now)
	default:
		table(out, chosen, now)
	}
	return 0
}

// gpus reads what the driver shows, in PCI order: that is NVML's index.
func gpus(proc string) []gpu {
	files, _ := filepath.Glob(filepath.Join(proc, "gpus", "*", "information"))
	sort.Strings(files)
	var all []gpu
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		g := gpu{bus: filepath.Base(filepath.Dir(file)), index: len(all)}
		excluded := false
		for line := range strings.Lines(string(text)) {
			k, v, _ := strings.Cut(line, ":")
			switch v = strings.TrimSpace(v); k {
			case "GPU UUID":
				g.uuid = v
			case "Device Minor":
				g.minor, _ = strconv.Atoi(v)
			case "GPU Excluded":
				excluded = v == "Yes"
			}
		}
		if !excluded {
			all = append(all, g)
		}
	}
	return all
}

// find takes an index, a UUID or a PCI address, with or without domain and function.
func find(all []gpu, id string) (gpu, bool) {
	for _, g := range all {
		bus := strings.ToLower(id)
		if id == strconv.Itoa(g.index) || id == g.uuid || bus == g.bus || bus == strings.ToLower(g.BusID()) ||
			bus+".0" == g.bus || bus == strings.TrimPrefix(g.bus, "0000:") || bus+".0" == strings.ToLower(g.BusID()) {
			return g, true
		}
	}
	return gpu{}, false
}
