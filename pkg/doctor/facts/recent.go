package facts

import (
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// This file finds errors in the log of a running pod. Most such errors have been resolved, or the program handles them,
// for example by retrying during startup or by rejecting a client's request. An error counts only if no signs of work
// follow it.

const (
	// errorCounts is the time for which a server's last error counts. After that time, the server may have handled
	// requests without logging them.
	errorCounts = time.Hour
	// jobErrorCounts is like errorCounts, but for a pod that runs to completion. Nothing follows the error in the log
	// of such a pod.
	jobErrorCounts = failedCounts
	// followedBy is the maximum number of ordinary lines that may follow an error.
	followedBy = 8
	// A program must log the same error repeatedTimes times, over a period of repeatedFor, before its retries count as
	// a failure.
	repeatedTimes = 3
	repeatedFor   = 10 * time.Minute
)

// LastErrors returns the lines in a running pod's log that report a persistent failure.
func (f *Facts) LastErrors(pod *corev1.Pod) []signatures.Line {
	if len(f.LogsOf(pod)) == 0 || pod.Status.Phase != corev1.PodRunning {
		return nil
	}
	lines := f.Lines([]*corev1.Pod{pod}, nil)
	f.RecentErrors(pod, lines)
	return slices.DeleteFunc(lines, func(line signatures.Line) bool { return line.Place != signatures.Log })
}

// RecentErrors clears the Place field in all of a running pod's lines that do not report a persistent failure. A
// signature's `also` and `unless` fields can still match such lines, but its `match` field cannot.
func (f *Facts) RecentErrors(pod *corev1.Pod, lines []signatures.Line) {
	within := jobErrorCounts
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil &&
		slices.Contains([]string{"ReplicaSet", "StatefulSet", "DaemonSet"}, owner.Kind) {
		within = errorCounts
	}
	logs := map[string]bool{}
	for _, l := range f.LogsOf(pod) {
		if !l.Previous && holdsGPUs(pod, l.Container) && !isNotebook(pod) {
			logs[LogSource(l)] = true
		}
	}
	for at := 0; at < len(lines); {
		source, end := lines[at].Evidence.Source, at+1
		for end < len(lines) && lines[end].Evidence.Source == source && lines[end].Place == lines[at].Place {
			end++
		}
		switch {
		case lines[at].Place == signatures.Spec:
		case lines[at].Place == signatures.Log && logs[source]:
			markErrors(lines[at:end], f.Now, within)
		default:
			for i := range lines[at:end] {
				lines[at+i].Place = ""
			}
		}
		at = end
	}
}

var (
	stamp = regexp.MustCompile(
		`(\d{4})[-/](\d{2})[-/](\d{2})[T ](\d{2}:\d{2}:\d{2})(?:[.,]\d+)?(Z|[+-]\d{2}:?\d{2})?|` +
			`(?:^[IWEF]|\b)(\d{2})-?(\d{2}) (\d{2}:\d{2}:\d{2})\b`,
	)
	levelError = regexp.MustCompile(
		`^[EF]\d{4} |(?i:level|lvl|severity)"?[=:] ?"?(?i:error|fatal|critical|crit|panic)\b|` +
			`(?:^|[\s\[|(:-])(?:ERROR|FATAL|CRITICAL|SEVERE)(?:$|[\s\]|):-])|NCCL WARN|^(?:Traceback|panic:|terminate called)|` +
			`^(?:\([^)]+\) *)?(?:[\w.]+\.)?\w*(?:Error|Exception)(?:: |$)|^(?i:error|fatal)\b`,
	)
	levelOther = regexp.MustCompile(
		`^[IWD]\d{4} |(?i:level|lvl|severity)"?[=:] ?"?(?i:info|debug|warn|trace|notice)|NCCL INFO|` +
			`(?:^|[\s\[|(:-])(?:INFO|DEBUG|WARN|WARNING|TRACE|NOTICE)(?:$|[\s\]|):-])|Warning: |^(?i:warn(?:ing)?|info)\b`,
	)
	// handled matches errors after which the program retries.
	handled = regexp.MustCompile(
		`(?i)\bretry|\bretries\b|\battempt\b|(?:will|to|and) try again|trying again|reconnect|\bwaiting (?:for|to)\b|` +
			`back(?:ing)? ?off`,
	)
	// aside matches errors that do not prevent the program from working: it has a fallback, the error concerns only the
	// export of metrics, or the line is from a tool that prepares the container.
	aside = regexp.MustCompile(
		`(?i)fall(?:s|ing)? ?back|\bfallback\b|\bignor|\bskip|not critical|harmless|\bsplitting\b|\breducing\b|` +
			`usage.stat|telemetry|analytics|opentelemetry|\botel|export(?:ing|er)\b|\bwandb|\bmlflow|tensorboard|` +
			`\bsentry\b|statsd|prometheus|\boptional\b|\bgit\b|^fatal: |\bpip\b|install packages|no matching distribution|` +
			`satisfies the requirement|\bapt-get\b|\bdpkg\b|^E: |\bconda\b|\bnpm\b`,
	)
	waited = regexp.MustCompile(`(?i)(?:timed out|timeout) (?:while )?waiting (?:for|to)`)
	// works matches lines that show that a program is working.
	works = regexp.MustCompile(
		`(?i)\bsucce(?:ss|eded)|\brecovered|\b(?:re)?connected\b|\bready\b|\bstarted\b|\blistening\b|running on|\bresum|` +
			`\bloaded\b|\binitialized\b|\bcompleted?\b|\bfinished\b|\bsaved\b|\b(?:loss|epoch|step|iter(?:ation)?)\b.*\d|` +
			`\bit/s\b|s/it\b|tokens?/s|throughput|Init COMPLETE`,
	)
	fails    = regexp.MustCompile(`(?i)error|fail|exception|Traceback|^ *File "`)
	answered = regexp.MustCompile(`(?:HTTP/[\d.]+"? |status(?:_code)?"?[=:] ?)[1-4]\d\d\b|\| +[1-4]\d\d +\||\b200 OK\b`)
	unserved = regexp.MustCompile(
		`(?:HTTP/[\d.]+"? |status(?:_code)?"?[=:] ?|\| +)50\d\b|` +
			`(?i:(?:failed|unable) to load|error loading|exiting due to)`,
	)
	health = regexp.MustCompile(`(?i)/(?:health|healthz|healthcheck|livez?|readyz?|ping|metrics|version|status)\b`)
)

// markErrors clears the Place field in those lines of one log that are not errors or whose errors are resolved.
func markErrors(lines []signatures.Line, now time.Time, within time.Duration) {
	type entry struct {
		at    time.Time
		error bool
	}
	entries := make([]entry, len(lines))
	var current entry
	var last time.Time
	ordinary, fine := 0, -1 // fine is the last line that shows that the program works
	for i := range lines {
		text := lines[i].Evidence.Text
		at, stamped := timeOf(text, now)
		isError := levelError.MatchString(text)
		isOther := levelOther.MatchString(head(text)) && !strings.Contains(text, "NCCL WARN") ||
			!isError && levelOther.MatchString(text)
		switch {
		case isOther:
			current.error = false
		case isError:
			current.error = true
		case stamped, answered.MatchString(text), works.MatchString(text) && !fails.MatchString(text):
			current.error = false // a line without a match belongs to the preceding error
		}
		if stamped {
			current.at, last = at, at
		}
		entries[i] = current
		if !current.error && !health.MatchString(text) &&
			(works.MatchString(text) && !levelError.MatchString(text) || answered.MatchString(text)) {
			fine = i
		}
	}
	if !last.IsZero() && last.After(now.Add(repeatedFor)) {
		now = last // the log's time zone is unknown
	}
	seen, first := map[string]int{}, map[string]time.Time{}
	program := -1 // the last error that is not from NCCL; NCCL may recover from its own
	for i := range lines {
		if entries[i].error && i > fine {
			if levelError.MatchString(strings.ReplaceAll(lines[i].Evidence.Text, "NCCL WARN", "")) {
				program = i
			}
			key := numbersOf.ReplaceAllString(lines[i].Evidence.Text, "0")
			if seen[key]++; seen[key] == 1 {
				first[key] = entries[i].at
			}
		}
	}
	for i := len(lines) - 1; i >= 0; i-- {
		text, at := lines[i].Evidence.Text, entries[i].at
		if !entries[i].error {
			if !health.MatchString(text) {
				ordinary++
			}
			lines[i].Place = ""
			continue
		}
		key := numbersOf.ReplaceAllString(text, "0")
		repeated := seen[key] >= repeatedTimes && !at.IsZero() && at.Sub(first[key]) >= repeatedFor
		old := !at.IsZero() && now.Sub(at) > within
		retried := handled.MatchString(waited.ReplaceAllString(text, ""))
		alone := strings.Contains(text, "NCCL WARN") && program < i
		if i <= fine || old || alone || aside.MatchString(text) || !repeated && (retried || ordinary > followedBy) {
			lines[i].Place = ""
		}
	}
}

// Unserved returns the last line in the log of a running pod that contains one of the texts, if the program then fails
// to load its model or to handle a request, and no later line shows that it works again.
func (f *Facts) Unserved(pod *corev1.Pod, texts []string) (last finding.Evidence, found bool) {
	if pod.Status.Phase != corev1.PodRunning || isNotebook(pod) {
		return last, false
	}
	for _, l := range f.LogsOf(pod) {
		if l.Previous || !holdsGPUs(pod, l.Container) {
			continue
		}
		said, failed := "", false
		for line := range strings.Lines(l.Text) {
			switch {
			case words.ContainsAny(line, texts) && !aside.MatchString(line) && !handled.MatchString(line):
				said, failed = line, false
			case said == "", health.MatchString(line):
			case answered.MatchString(line), works.MatchString(line) && !fails.MatchString(line):
				said = ""
			default:
				failed = failed || unserved.MatchString(line)
			}
		}
		if at, stamped := timeOf(said, f.Now); said != "" && failed && (!stamped || f.Now.Sub(at) < errorCounts) {
			return finding.Evidence{Source: LogSource(l), Text: words.Clip(strings.TrimSpace(said))}, true
		}
	}
	return last, false
}

// isNotebook reports whether a pod runs code that its user enters interactively. Errors in such a pod are the user's
// own, and the next cell may work.
func isNotebook(pod *corev1.Pod) bool {
	_, hub := pod.Labels["hub.jupyter.org/username"]
	_, kubeflow := pod.Labels["notebook-name"]
	return hub || kubeflow || pod.Labels["component"] == "singleuser-server"
}

// holdsGPUs reports whether the pod's container gets GPUs from any vendor.
func holdsGPUs(pod *corev1.Pod, container string) bool {
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if c.Name != container {
			continue
		}
		for name := range c.Resources.Limits {
			if LooksLikeGPU(name) {
				return true
			}
		}
		return len(c.Resources.Claims) > 0
	}
	return false
}

// head returns the beginning of a line, which contains the log level.
func head(text string) string { return text[:min(len(text), 48)] }

var numbersOf = regexp.MustCompile(`\d+`)

// timeOf returns the time at which a line was logged. A time without a zone is interpreted as UTC, and a date without a
// year as the most recent such date.
func timeOf(text string, now time.Time) (at time.Time, ok bool) {
	m := stamp.FindStringSubmatch(text[:min(len(text), 96)])
	if m == nil {
		return time.Time{}, false
	}
	layout, value := "2006-01-02T15:04:05Z07:00", m[1]+"-"+m[2]+"-"+m[3]+"T"+m[4]
	switch zone := m[5]; {
	case m[1] == "":
		value = now.UTC().Format("2006") + "-" + m[6] + "-" + m[7] + "T" + m[8] + "Z"
	case zone == "" || zone == "Z":
		value += "Z"
	default:
		value += zone[:3] + ":" + zone[len(zone)-2:]
	}
	at, err := time.Parse(layout, value)
	if err == nil && m[1] == "" && at.After(now.AddDate(0, 0, 1)) {
		at = at.AddDate(-1, 0, 0)
	}
	return at, err == nil
}
