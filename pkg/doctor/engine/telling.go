package engine

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// quote adds the most informative line about the failure to a finding that no signature explains. Programs often log
// what is wrong and how to fix it. Such advice is shown as a quotation, because the author of the log may have made it
// up.
func quote(found *finding.Finding, lines []signatures.Line) {
	found.Cause = "The cause is unknown: no signature matches the messages."
	told := telling(lines)
	if len(told) == 0 {
		return
	}
	at := told[0]
	text := strings.TrimSpace(lines[at].Evidence.Text)
	found.Title += ": " + words.ClipTo(text, longestHeadline)
	for _, i := range slices.Backward(told) {
		addEvidence(found, lines[i].Evidence)
	}
	if advises.MatchString(text) {
		found.Cause = fmt.Sprintf("No signature matches the messages, but one of them describes the problem: "+
			"%q", words.ClipTo(text, longestReason))
	}
	if advice := suggestion(lines[at:]); advice != "" {
		found.Fix.Text = strings.TrimSpace(fmt.Sprintf("The message suggests (verify this before you follow it): %q. "+
			"%s", advice,
			words.Sentence(found.Fix.Text)))
	}
}

// suggestion returns the sentence in which a message, or one of the next lines from the same source, suggests a change.
// It returns an empty string if there is none.
func suggestion(lines []signatures.Line) string {
	for _, line := range lines[:min(len(lines), suggestedWithin)] {
		if line.Place != lines[0].Place || line.Evidence.Source != lines[0].Evidence.Source {
			break
		}
		for _, sentence := range sentenceEnd.Split(strings.TrimSpace(line.Evidence.Text), -1) {
			if suggests.MatchString(sentence) && !wraps.MatchString(sentence) && !debugs.MatchString(sentence) {
				return words.ClipTo(strings.TrimRight(strings.TrimSpace(sentence), ".,"), longestReason)
			}
		}
	}
	return ""
}

// suggestedWithin is the maximum number of lines that a message and its suggestion span.
const suggestedWithin = 3

var (
	sentenceEnd = regexp.MustCompile(`[.!?:;] +|\\n`)
	// suggests matches sentences that instruct the reader to do something.
	suggests = regexp.MustCompile(
		`(?i)^(?:please |you (?:can|may|should|need to|must) |consider |try |(?:either )?(?:increase|decrease|reduce|raise|` +
			`lower|set|use|install|upgrade|update|enable|disable|specify|pass|add|remove|run|make sure|ensure|check that|` +
			`verify that|restart|mount|grant|request|accept|visit) )\S|\b(?:try (?:to|setting|increasing|decreasing|` +
			`reducing|using|again with)|please (?:set|use|install|upgrade|update|enable|specify|pass|add|remove|run|make|` +
			`check|increase|decrease|reduce|raise|provide|accept|ensure|consider)|consider \w+ing)\b`,
	)
)

// debugs matches sentences that explain how to debug a program. Such instructions do not fix the program.
var debugs = regexp.MustCompile(`(?i)\bdebug|SERIALIZE_KERNEL|LAUNCH_BLOCKING|_DSA\b|backtrace|stack ?trace`)

// These values are added to the score of a line. The score measures how informative the line is about a failure.
const (
	saysFailed  = 2  // a word such as failed
	isException = 5  // a Python exception
	isFatal     = 6  // klog's last line before the program exits
	isError     = 3  // the program logs the line as an error, or the component logs only warnings
	isDetail    = -2 // an informational log level
	saysWhy     = 7  // an operating system error, a limit, a version or a permission
	namesThing  = 2  // a file, an address, a version or a quoted string
	saysAdvice  = 5
	isWrapped   = -9 // the line only reports that something else failed
	ofTheNode   = -3 // the node's log also contains lines that do not concern the pod
)

var (
	failed = regexp.MustCompile(
		`(?i)\b(?:error|fatal|panic|critical|failed|failure|cannot|can't|could(?: not|n't)|unable to|denied|forbidden|` +
			`unauthorized|refused|not found|no such|invalid|missing|unsupported|exceed(?:s|ed)?|timed out|timeout|exhausted|` +
			`insufficient|incompatible|not supported|mismatch|aborted|segmentation fault|unavailable|restricted|` +
			`not loaded|disabled|not available|not installed|no (?:usable|compatible|available)|OOMKilled|evicted|` +
			`low on resource|limit reached|untolerated|already used|over quota|too (?:many|large|small|old)|` +
			`(?:was|is|does|has) not|doesn't|didn't match|no \w+(?: \w+){0,3} (?:found|matched|available|configured))\b`,
	)
	exception = regexp.MustCompile(`(?:^|[\])] )(?:[\w.]+\.)?\w*(?:Error|Exception|Exit)(?:: |$)`) // in Python
	fatal     = regexp.MustCompile(`^F\d{4} `)
	levelHigh = regexp.MustCompile(
		`^[EF]\d{4} |level=(?:error|fatal)|"level": ?"(?i:error|fatal)"|(?:^| )(?:ERROR|FATAL|CRITICAL)\b|NCCL WARN|` +
			`NVRM: `,
	)
	levelLow = regexp.MustCompile(
		`^[IDW]\d{4} |level=(?i:info|debug|warn)|"level": ?"(?i:info|debug|warn)|(?:^| )(?:INFO|DEBUG)\b`,
	)
	why = regexp.MustCompile(
		`(?i)No such (?:file or directory|device)|Permission denied|Connection refused|No space left|Cannot allocate ` +
			`memory|Operation not permitted|Read-only file system|Exec format error|Too many open files|File exists|Not a ` +
			`directory|Input/output error|Address already in use|Name or service not known|no such host|x509|i/o timeout|` +
			`unauthorized|forbidden|not found|not supported|mismatch|too old|insufficient|incompatible|undefined symbol|` +
			`not installed|not loaded|` +
			`does not match|is not allowed|denied the request|out of memory|OOMKilled|exceed|low on resource|` +
			`limit reached|untolerated|unavailable in|didn't match`,
	)
	things = regexp.MustCompile(
		`(?:^|[\s'"=:(])/(?:[\w.@+-]+/)+[\w.@+-]+|\b[\w.-]+\.so(?:\.\d+)*\b|https?://\S+|\b\d+\.\d+\.\d+(?:\.\d+)?\b|` +
			`'[^']{2,80}'|"[^"]{2,80}"|` + "`[^`]{2,80}`",
	)
	// empty matches lines that contain no information about a failure.
	empty = regexp.MustCompile(
		`(?i)^goroutine \d+ |^\s*/\S+\.go:\d+|^r\w\w? +0x[0-9a-f]+$|^back-off \S+ restarting|` +
			`^Error: ImagePullBackOff|^Error syncing pod|^Back-off |^Error: failed to start container|` +
			`exit code \d+ \(Error\)$|^\s*$|^(?:Error|Completed)$|^(?:CrashLoopBackOff|ImagePullBackOff|PodFailed)(?::|$)|` +
			`^ContainersNot(?:Ready|Initialized)|^\w+ probe failed:$`,
	)
	// advises matches lines that state a requirement or suggest a change.
	advises = regexp.MustCompile(
		`(?i)\b(?:try|please|must (?:be|have|not)|should be|instead|requires?|required|increase|increasing|decrease|reduce|` +
			`larger than|greater than|less than|smaller than|at least|at most|expected|only supports?|not enough|` +
			`does(?: not|n't) (?:exist|support|match|have))\b`,
	)
	// wraps matches lines that only report that something else failed.
	wraps = regexp.MustCompile(
		`(?i)see (?:the )?(?:root cause|stack trace|error|logs?|above|below|['"]?appendix)|initialization failed|` +
			`engine ?(?:core|process)|exit(?:ed)?(?: with)? (?:code|status)|shutting down|worker .*(?:died|failed)|` +
			`child ?process|returned non-zero|Traceback|being killed|SIGTERM|main process exited|failed with result|` +
			`\bmake(?:\[\d+\])?: \*\*\*|failed to infer device type|unhandled (?:system|cuda) error|` +
			`remote process exited|probe failed|attempt \d+/|context deadline exceeded|timed out waiting|` +
			`unable to attach or mount|garbage collect|device minor number|rm_init_adapter failed|could not be located|` +
			`^False, reason Error|verbose logging|attempting to pull the image may|back-off|failed create pod sandbox\.$|` +
			`may be unrelated|different job|run with NCCL_DEBUG`,
	)
)

// telling returns the indexes of the few most informative lines about a failure, best first. Among lines with the same
// score, the first is the closest to the cause. Of lines that differ only in numbers, such as the time, only one is
// returned.
func telling(lines []signatures.Line) []int {
	type told struct{ at, score int }
	var all []told
	seen := map[string]bool{}
	for i, line := range lines {
		text := strings.TrimSpace(line.Evidence.Text)
		source := i > 0 && frame.MatchString(lines[i-1].Evidence.Text) // source code quoted in a traceback
		if line.Place == signatures.Spec || source || empty.MatchString(text) {
			continue
		}
		s := score(text)
		if s > 0 && slices.Contains([]signatures.Place{signatures.Kernel, signatures.Unit}, line.Place) {
			s = max(1, s+ofTheNode)
		}
		if key := numbers.ReplaceAllString(text, "0"); s > 0 && !seen[key] {
			seen[key] = true
			all = append(all, told{i, s})
		}
	}
	sorting.StableFunc(all, func(a, b told) int { return b.score - a.score })
	var best []int
	for _, t := range all {
		if len(best) == 0 || len(best) < mostTold && t.score >= alsoTold {
			best = append(best, t.at)
		}
	}
	return best
}

const (
	mostTold = 3 // maximum number of lines per finding
	alsoTold = saysFailed + saysWhy
)

// frame matches a frame in a Python traceback. The next line is the program's source code.
var frame = regexp.MustCompile(`(?:^|\s)File "[^"]+", line \d+(?:, in .+)?$`)

var numbers = regexp.MustCompile(`\d+`)

// score returns how informative a line is about a failure. A score of 0 means that the line is irrelevant.
func score(text string) (score int) {
	add := func(re *regexp.Regexp, points int) {
		if re.MatchString(text) {
			score += points
		}
	}
	add(failed, saysFailed)
	add(exception, isException)
	add(fatal, isFatal)
	add(levelHigh, isError)
	add(why, saysWhy)
	if score == 0 {
		return 0
	}
	add(levelLow, isDetail)
	add(things, namesThing)
	add(advises, saysAdvice)
	add(wraps, isWrapped)
	return max(score, 1)
}

// The maximum lengths, in bytes, of a quotation in a title and in a text.
const (
	longestHeadline = 160
	longestReason   = 400
)
