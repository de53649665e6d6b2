package cuda

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// table returns a table that shows whether the shim is loaded and armed in each process, and what it has done.
func (l statusList) table(format printer.Format) *printer.Table {
	t := &printer.Table{Header: []string{
		"POD", "NODE", "CONTAINER", "PID", "PROCESS", "LOADED", "STATE", "CALLS", "TRIPS", "LAST FUNCTION", "ERROR",
	}, NoHeader: format.NoHeader}
	if format.IsWide() {
		t.Header = append(t.Header, "DRIVER", "HOOKS", "STARTED", "LOOKED", "TRIPPED", "LOG")
	}
	if len(l.Items) > 1 {
		t.Header = append([]string{"RUN"}, t.Header...)
	}
	add := func(run string, cells, wide []string) {
		if format.IsWide() {
			cells = append(cells, wide...)
		}
		if len(l.Items) > 1 {
			cells = append([]string{run}, cells...)
		}
		t.Add(cells...)
	}
	for _, run := range l.Items {
		for _, pod := range run.Pods {
			place := []string{pod.Name, pod.Node, strings.Join(pod.Containers, ",")}
			log := cmp.Or(strings.Join(pod.Log, "; "), printer.Blank)
			for _, cells := range pod.withoutReports() {
				add(run.Run, append(place[:len(place):len(place)], cells...),
					[]string{printer.Blank, printer.Blank, printer.Blank, printer.Blank, printer.Blank, log})
			}
			for _, p := range pod.Processes {
				add(run.Run, append(place[:len(place):len(place)], p.cells()...), append(p.wideCells(l.now), log))
			}
		}
	}
	return t
}

// withoutReports returns the rows for a pod without process reports: one for each process in its log, or one for the
// pod if there are none.
func (p podStatus) withoutReports() [][]string {
	if len(p.Processes) > 0 {
		return nil
	}
	var rows [][]string
	told := map[trip]bool{}
	for _, line := range p.Log {
		if t, ok := parseTrip(line); ok && p.Problem == "" && !told[t] {
			told[t] = true
			rows = append(rows,
				[]string{t.pid, t.process, p.loaded(), p.state(), printer.Blank, printer.Blank, t.function, t.what})
		}
	}
	if len(rows) == 0 {
		rows = [][]string{
			{
				printer.Blank, printer.Blank, p.loaded(), p.state(), printer.Blank, printer.Blank, printer.Blank,
				p.trouble(),
			},
		}
	}
	return rows
}

// loaded returns the LOADED cell of a pod without process reports.
func (p podStatus) loaded() string {
	switch {
	case len(p.Log) > 0:
		return "from the log"
	case p.Generation != 0:
		return "no process yet"
	default:
		return printer.Blank
	}
}

// state returns the STATE cell of a pod without process reports.
func (p podStatus) state() string {
	if p.State == "" {
		return "unknown"
	}
	return p.State
}

// trouble returns the last cell of a pod without process reports: the problem, or the last log line of the shim.
func (p podStatus) trouble() string {
	switch {
	case p.Problem != "":
		return p.Problem
	case len(p.Log) > 0:
		return p.Log[len(p.Log)-1]
	default:
		return printer.Blank
	}
}

func (p processStatus) cells() []string {
	state := p.State
	if p.Former {
		state += " (ended)"
	}
	failed := printer.Blank
	if p.LastError != 0 {
		failed = errorCell(p.LastError, p.Function)
	}
	return []string{
		fmt.Sprint(p.PID), p.Name, p.Paths.String(), state, fmt.Sprint(p.Calls), fmt.Sprint(p.Trips),
		cmp.Or(p.Function, printer.Blank), failed,
	}
}

func (p processStatus) wideCells(now time.Time) []string {
	ago := func(t time.Time) string {
		if t.IsZero() {
			return printer.Blank
		}
		return duration.HumanDuration(max(0, now.Sub(t))) + " ago"
	}
	driver := printer.Blank
	if p.Driver > 0 {
		driver = driverVersion(p.Driver)
	}
	return []string{driver, fmt.Sprint(p.Hooks), ago(p.Started), ago(p.Looked), ago(p.TrippedAt)}
}
