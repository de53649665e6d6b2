package main

import (
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

const shortDescription = "Break GPU nodes on purpose and diagnose them"

// manifest is what krew reads, of v1alpha2.
type manifest struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string          `json:"version"`
		Homepage         string          `json:"homepage"`
		ShortDescription string          `json:"shortDescription"`
		Description      string          `json:"description"`
		Caveats          string          `json:"caveats"`
		Platforms        []krewsPlatform `json:"platforms"`
	} `json:"spec"`
}

type krewsPlatform struct {
	URI      string `json:"uri"`
	Sha256   string `json:"sha256"`
	Bin      string `json:"bin"`
	Selector struct {
		MatchLabels struct {
			OS   string `json:"os"`
			Arch string `json:"arch"`
		} `json:"matchLabels"`
	} `json:"selector"`
}

// indexRules returns those that reviewers of krew's index ask for and no tool checks:
// https://krew.sigs.k8s.io/docs/developer-guide/release/.
func indexRules(w *world) (string, error) {
	text, err := w.manifest()
	if err != nil {
		return "", err
	}
	var m manifest
	if err := yaml.UnmarshalStrict([]byte(text), &m); err != nil {
		return "", err
	}
	var broken []string
	rule := func(holds bool, format string, args ...any) {
		if !holds {
			broken = append(broken, fmt.Sprintf(format, args...))
		}
	}
	s := m.Spec
	rule(m.APIVersion == "krew.googlecontainertools.github.com/v1alpha2" && m.Kind == "Plugin", "it is a %s of %s",
		m.Kind, m.APIVersion)
	rule(m.Metadata.Name == "gpu-fault", "the name is %q", m.Metadata.Name)
	rule(s.Version == version, "the version is %q", s.Version)
	rule(strings.HasPrefix(s.Homepage, "https://"+host+"/"), "the homepage is %q", s.Homepage)
	rule(s.ShortDescription == shortDescription, "the short description is %q", s.ShortDescription)
	rule(len(s.ShortDescription) <= 50, "the short description has %d characters; the index shows 50",
		len(s.ShortDescription))
	for _, word := range []string{"kubectl", "kubernetes", "plugin"} {
		rule(!strings.Contains(strings.ToLower(s.ShortDescription), word),
			"the short description says %q, which all in the index are", word)
	}
	rule(!strings.HasSuffix(s.ShortDescription, "."), "the short description ends with a full stop")
	rule(s.Description != "" && s.Caveats != "", "there is no description, or no caveats")
	for _, line := range strings.Split(s.Description+s.Caveats, "\n") {
		rule(len(line) <= 80, "this line has %d characters, and terminals 80: %s", len(line), line)
	}
	rule(!strings.Contains(s.Description, "kubectl gpu-fault"),
		"the description shows usage, which belongs into the help")
	for _, word := range []string{"privileged", "completion --install"} {
		rule(strings.Contains(s.Caveats, word), "the caveats do not tell of %q", word)
	}
	rule(len(s.Platforms) == len(platforms), "it lists %d platforms, not %d", len(s.Platforms), len(platforms))
	for i, p := range platforms[:min(len(platforms), len(s.Platforms))] {
		got, want := s.Platforms[i], p.archive()[len(dist)+1:]
		labels := got.Selector.MatchLabels
		rule(labels.OS == p.os && labels.Arch == p.arch, "platform %d is %v, not %s/%s", i, labels, p.os, p.arch)
		rule(got.URI == "https://"+host+downloads+version+"/"+want, "platform %d is fetched from %s", i, got.URI)
		rule(got.Bin == p.program(), "platform %d runs %s", i, got.Bin)
		have, err := sum(p.archive())
		if err != nil {
			return "", err
		}
		rule(got.Sha256 == have, "platform %d has the checksum %s, its archive %s", i, got.Sha256, have)
	}
	if len(broken) > 0 {
		return "", fmt.Errorf("%s", strings.Join(broken, "\n"))
	}
	return "", nil
}

// only returns the manifest with one platform alone, for another version whose archive has the given checksum.
func only(text, os, arch, v, sha256 string) (string, error) {
	var m manifest
	if err := yaml.UnmarshalStrict([]byte(text), &m); err != nil {
		return "", err
	}
	for _, p := range m.Spec.Platforms {
		if p.Selector.MatchLabels.OS != os || p.Selector.MatchLabels.Arch != arch {
			continue
		}
		p.URI, p.Sha256 = strings.ReplaceAll(p.URI, m.Spec.Version, v), sha256
		m.Spec.Version, m.Spec.Platforms = v, []krewsPlatform{p}
		raw, err := yaml.Marshal(m)
		return string(raw), err
	}
	return "", fmt.Errorf("the manifest has no %s/%s", os, arch)
}
