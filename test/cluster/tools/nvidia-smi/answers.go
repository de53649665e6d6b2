package main

import (
	_ "embed"
	"fmt"
	"io"
	"strings"
	"time"
)

//go:embed capture/query-gpu.tsv
var queryGPUFields string

//go:embed capture/query.txt
var queryGPUText string

//go:embed capture/gpu.xml
var queryGPUXML string

// What stands for the captured GPU in the capture.
const (
	capturedBus  = "00000000:83:00.0"
	capturedUUID = "GPU-00000000-0000-0000-0000-000000000000"
)

// queryGPU answers --query-gpu.
func queryGPU(out io.Writer, gpus []gpu, count int, fields []string, format string, now time.Time) int {
	header, units, csv := true, true, false
	for _, f := range strings.Split(format, ",") {
		switch strings.TrimSpace(f) {
		case "csv":
			csv = true
		case "noheader":
			header = false
		case "nounits":
			units = false
		case "":
		default:
			fmt.Fprintf(out, "\"%s\" is not recognized as a valid --format option\n", f)
			return exitBadArgument
		}
	}
	if !csv {
		fmt.Fprint(out,
			"\"--format=\" switch is missing. It should be specified when --query-* is used.\nValid format: csv\n")
		return exitBadArgument
	}
	type field struct{ heading, value string }
	known := map[string]field{}
	for line := range strings.Lines(queryGPUFields) {
		c := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(c) < 2 {
			continue // the comment
		}
		name, _, _ := strings.Cut(c[0], " [")
		known[name] = field{c[0], c[1]}
		if len(c) > 2 {
			known[c[2]] = known[name]
		}
	}
	var headings []string
	for i, name := range fields {
		fields[i] = strings.TrimSpace(name)
		f, ok := known[fields[i]]
		if !ok {
			fmt.Fprintf(out, "Field \"%s\" is not a valid field to query.\n\n", fields[i])
			return exitBadArgument
		}
		headings = append(headings, f.heading)
	}
	if header {
		fmt.Fprintln(out, strings.Join(headings, ", "))
	}
	for _, g := range gpus {
		own := map[string]string{
			"timestamp": now.Format("2006/01/02 15:04:05.000"), "count": fmt.Sprint(count),
			"index": fmt.Sprint(g.index),
			"uuid":  g.uuid, "pci.bus_id": g.BusID(), "pci.domain": "0x" + g.BusID()[4:8],
			"pci.bus": "0x" + g.BusID()[9:11],
		}
		var row []string
		for _, name := range fields {
			f := known[name]
			name, unit, hasUnit := strings.Cut(f.heading, " [")
			v := f.value
			if o, ok := own[name]; ok {
				v = o
			}
			if hasUnit && !units {
				v = strings.TrimSuffix(v, " "+strings.TrimSuffix(unit, "]"))
			}
			row = append(row, v)
		}
		fmt.Fprintln(out, strings.Join(row, ", "))
	}
	return 0
}

func queryText(out io.Writer, gpus []gpu, count int, now time.Time) {
	fmt.Fprintf(out, "\n==============NVSMI LOG==============\n\n")
	for _, l := range [][2]string{
		{"Timestamp", now.Format(time.ANSIC)}, {"Driver Version", driver}, {"CUDA Version", cuda}, {"", ""},
		{"Attached GPUs", fmt.Sprint(count)},
	} {
		if l[0] == "" {
			fmt.Fprintln(out)
			continue
		}
		fmt.Fprintf(out, "%-55s: %s\n", l[0], l[1])
	}
	for _, g := range gpus {
		fmt.Fprintf(out, "GPU %s\n%s\n", g.BusID(), ofGPU(queryGPUText, g))
	}
}

func queryXML(out io.Writer, gpus []gpu, count int, now time.Time) {
	fmt.Fprintf(out, `<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log>
	<timestamp>%s</timestamp>
	<driver_version>%s</driver_version>
	<cuda_version>%s</cuda_version>
	<attached_gpus>%d</attached_gpus>
`, now.Format(time.ANSIC), driver, cuda, count)
	for _, g := range gpus {
		fmt.Fprintf(out, "\t<gpu id=\"%s\">\n%s\t</gpu>\n\n", g.BusID(), ofGPU(queryGPUXML, g))
	}
	fmt.Fprint(out, "</nvidia_smi_log>\n")
}

// ofGPU puts one GPU's identity into a captured text.
func ofGPU(text string, g gpu) string {
	bus, domain := g.BusID()[9:11], g.BusID()[4:8]
	minor := fmt.Sprint(g.minor)
	return strings.NewReplacer(
		capturedBus, g.BusID(), capturedUUID, g.uuid,
		"<pci_domain>0000<", "<pci_domain>"+domain+"<", "<pci_bus>83<", "<pci_bus>"+bus+"<", "<board_id>0x8300<",
		"<board_id>0x"+strings.ToLower(bus)+"00<",
		"<minor_number>0<", "<minor_number>"+minor+"<",
		"    Minor Number                                       : 0",
		"    Minor Number                                       : "+minor,
		"        Domain                                         : 0x0000",
		"        Domain                                         : 0x"+domain,
		"        Bus                                            : 0x83",
		"        Bus                                            : 0x"+bus,
		"    Board ID                                           : 0x8300",
		"    Board ID                                           : 0x"+strings.ToLower(bus)+"00",
	).Replace(text)
}

func table(out io.Writer, gpus []gpu, now time.Time) {
	fmt.Fprintf(out, `%s       
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI %s              Driver Version: %s      CUDA Version: %s     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
`, now.Format(time.ANSIC), driver, driver, cuda)
	for _, g := range gpus {
		fmt.Fprintf(out, `|   %d  NVIDIA H200                    On  |   %s Off |                    0 |
| N/A   28C    P0             77W /  700W |       0MiB / 143771MiB |      0%%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
`, g.index, g.BusID())
	}
	fmt.Fprint(out, `
+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|  No running processes found                                                             |
+-----------------------------------------------------------------------------------------+
`)
}
