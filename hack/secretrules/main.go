// Command secretrules writes pkg/redact/rules.tsv from the gitleaks rules, which contain the token formats of many
// services. To update to a newer release, run: go run ./hack/secretrules v8.30.1
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

const module = "github.com/zricethezav/gitleaks/v8"

// rule is a rule in gitleaks' default configuration, with only the fields that this program uses.
type rule struct {
	ID, Regex   string
	Entropy     float64
	SecretGroup int
	Keywords    []string
	Path        string
}

// skipped lists the gitleaks rules that are not imported, because redact has its own, stricter rules for named values
// and Kubernetes Secrets.
var skipped = []string{"generic-api-key", "kubernetes-secret-yaml", "curl-auth-header", "curl-auth-user", "private-key"}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./hack/secretrules VERSION")
		os.Exit(1)
	}
	text, err := table(os.Args[1])
	if err == nil {
		err = os.WriteFile("pkg/redact/rules.tsv", []byte(text), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func table(version string) (string, error) {
	download := exec.Command("go", "mod", "download", "-json", module+"@"+version)
	download.Env = append(os.Environ(), "GOFLAGS=-mod=mod")
	out, err := download.Output()
	if err != nil {
		return "", fmt.Errorf("download %s@%s: %w", module, version, err)
	}
	var downloaded struct{ Dir string }
	if err := json.Unmarshal(out, &downloaded); err != nil {
		return "", fmt.Errorf("read the output of go mod download: %w", err)
	}
	data, err := os.ReadFile(filepath.Join(downloaded.Dir, "config", "gitleaks.toml"))
	if err != nil {
		return "", err
	}
	var config struct{ Rules []rule }
	if err := toml.Unmarshal(data, &config); err != nil {
		return "", err
	}
	license, err := os.ReadFile(filepath.Join(downloaded.Dir, "LICENSE"))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Formats of secrets, from gitleaks %s; written by hack/secretrules. Its license:\n#\n", version)
	for line := range strings.Lines(strings.TrimSpace(string(license))) {
		b.WriteString(strings.TrimRight("# "+strings.TrimSpace(line), " ") + "\n")
	}
	b.WriteString("id\tkeywords\tgroup\tentropy\tregex\n")
	for _, r := range config.Rules {
		if r.Regex == "" || slices.Contains(skipped, r.ID) {
			continue
		}
		pattern, err := regexp.Compile(r.Regex)
		if err != nil {
			return "", fmt.Errorf("rule %s: %w", r.ID, err)
		}
		group := r.SecretGroup
		if group == 0 && pattern.NumSubexp() > 0 {
			group = 1
		}
		fmt.Fprintf(&b, "%s\t%s\t%d\t%g\t%s\n", r.ID, strings.ToLower(strings.Join(r.Keywords, ",")), group, r.Entropy,
			strings.TrimSpace(r.Regex))
	}
	return b.String(), nil
}
