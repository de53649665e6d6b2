package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
)

// row is one figure, compared with another figure from the same run.
type row struct {
	Measurement string `json:"measurement"`
	Rounds      int    `json:"rounds"`
	What        string `json:"what"`
	// Unit is the unit of Median and Other: s, ms, ns, MiB, KiB, requests or failures.
	Unit string `json:"unit"`
	// Median is the median of the rounds, except in the start and shim measurements: there, it is the best of the
	// rounds.
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	// Against is the floor or the peer, and Other is its median.
	Against string  `json:"against"`
	Other   float64 `json:"other"`
	Ratio   float64 `json:"ratio"`
	// Limit is the highest allowed Ratio, and More is the highest allowed Median - Other; 0 means no limit.
	Limit float64 `json:"limit,omitempty"`
	More  float64 `json:"more,omitempty"`
	// None is set if Median must be 0.
	None bool `json:"none,omitempty"`
	OK   bool `json:"ok"`
}

// judged returns the row with Ratio and OK set.
func (r row) judged() row {
	if r.Other != 0 {
		r.Ratio = r.Median / r.Other
	}
	r.OK = (r.Limit == 0 || r.Ratio <= r.Limit) && (r.More == 0 || r.Median-r.Other <= r.More) &&
		(!r.None || r.Median == 0)
	return r
}

// limit formats the limit for display.
func (r row) limit() string {
	switch {
	case r.None:
		return "none"
	case r.More != 0:
		return fmt.Sprintf("+%g %s", r.More, r.Unit)
	case r.Limit != 0:
		return fmt.Sprintf("%g", r.Limit)
	}
	return "-"
}

// report contains the measurements of one run of bench.
type report struct {
	Time    string `json:"time"`
	Machine string `json:"machine"`
	Items   []row  `json:"items"`
}

func newReport() *report {
	return &report{Time: time.Now().UTC().Format("2006-01-02 15:04 UTC"), Machine: machine(), Items: []row{}}
}

// machine describes this machine: the model and number of its processors, the kernel, and the load of the last minute,
// which other programs may cause.
func machine() string {
	text := fmt.Sprintf("%d x %s", runtime.NumCPU(), runtime.GOARCH)
	if file, err := os.Open("/proc/cpuinfo"); err == nil {
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			if name, value, found := strings.Cut(lines.Text(), ":"); found && strings.TrimSpace(name) == "model name" {
				text = fmt.Sprintf("%d x %s", runtime.NumCPU(), strings.TrimSpace(value))
				break
			}
		}
		_ = file.Close()
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		text += ", Linux " + strings.TrimSpace(string(release))
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		minute, _, _ := strings.Cut(string(load), " ")
		text += ", load " + minute
	}
	return text
}

func (r *report) print(w io.Writer, format string) error {
	if format == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	fmt.Fprintf(w, "%s, %s\n", r.Time, r.Machine)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "WHAT\tMEDIAN\tFLOOR OR PEER\tMEDIAN\tRATIO\tLIMIT\t")
	for _, i := range r.Items {
		state, ratio := "ok", "-"
		switch {
		case !i.OK:
			state = "over"
		case i.limit() == "-":
			state = ""
		}
		if i.Other != 0 {
			ratio = fmt.Sprintf("%.2f", i.Ratio)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", i.What, figure(i.Median, i.Unit), i.Against,
			figure(i.Other, i.Unit), ratio, i.limit(), state)
	}
	return t.Flush()
}

// figure writes a number with its unit, with about three digits.
func figure(x float64, unit string) string {
	switch {
	case x == float64(int64(x)):
		return fmt.Sprintf("%.0f %s", x, unit)
	case x < 10:
		return fmt.Sprintf("%.2f %s", x, unit)
	}
	return fmt.Sprintf("%.1f %s", x, unit)
}

// verdict returns an error if a figure exceeds its limit.
func (r *report) verdict() error {
	over := 0
	for _, i := range r.Items {
		if !i.OK {
			over++
		}
	}
	if over > 0 {
		return fmt.Errorf("%d of %d figures exceed their limits", over, len(r.Items))
	}
	return nil
}
