package cluster

import (
	"regexp"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// fatalLine matches the last line that the kubelet, k3s or RKE2 logs before it exits with an error. The group is the
// message.
var fatalLine = regexp.MustCompile(
	`level=fatal msg="?(.*?)"?$|\bF\d{4} [\d:.]+ +\d+ [\w.]+:\d+\] (.*)|(panic: .*)|"command failed" err="(.*?)"?$|` +
		`(failed to (?:run Kubelet|load [Kk]ubelet config).*)`,
)

// endLine matches a line that may follow the error, such as systemd's lines about the unit's exit or next start.
var endLine = regexp.MustCompile(`systemd\[\d+\]: |^\s*$|goroutine |^-- `)

// describeFatal quotes the error with which the kubelet's unit last exited, which is why the kubelet is not reporting.
func describeFatal(n *facts.Node, issue *finding.Finding) {
	if n.Host == nil {
		return
	}
	for _, unit := range words.SortedKeys(n.Host.Journals) {
		name := strings.TrimSuffix(unit, ".service")
		known := []string{kubeletUnit(n), "kubelet", "k3s", "k3s-agent", "rke2-agent", "rke2-server"}
		if !slices.Contains(known, name) {
			continue
		}
		lines := strings.Split(strings.TrimRight(n.Host.Journals[unit], "\r\n"), "\n")
		for _, line := range slices.Backward(lines) {
			if endLine.MatchString(line) {
				continue
			}
			m := fatalLine.FindStringSubmatch(line)
			if m == nil {
				break // the unit is running, or exited for another reason
			}
			said := strings.Join(m[1:], "")
			issue.Title = "the node is not Ready, because " + name + " exits at startup: " +
				words.Clip(strings.ReplaceAll(said, `\"`, `"`))
			issue.Fix.Text = "Fix the error in the last line of the unit's journal; the unit then restarts " +
				"automatically. The machine and its network are not at fault."
			issue.Evidence = append(issue.Evidence, finding.Evidence{
				Source: "nodes/" + n.Name + "/journal/" + unit, Text: words.Clip(strings.TrimSpace(line)),
			})
			return
		}
	}
}
