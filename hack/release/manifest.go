package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"text/template"

	"sigs.k8s.io/yaml"
)

// manifestName is the name of the manifest, both of the template in the root of the repository and of the output in
// dist.
const manifestName = "krew-manifest.yaml"

// manifest renders the krew manifest for the archives in the directory. krew-release-bot uses the same template with
// the archives on the release page, and provides the functions .TagName and addURIAndSha.
func (r release) manifest(folder string) error {
	raw, err := os.ReadFile(manifestName)
	if err != nil {
		return err
	}
	rendered, err := renderManifest(string(raw), r.version, folder)
	if err != nil {
		return fmt.Errorf("render %s: %w", manifestName, err)
	}
	return os.WriteFile(filepath.Join(folder, manifestName), rendered, 0o644)
}

// renderManifest renders the template, and checks that it lists all archives in the directory.
func renderManifest(text, version, folder string) ([]byte, error) {
	tag := struct{ TagName string }{version}
	addURIAndSha := func(uri, _ string) (string, error) {
		var b strings.Builder
		parsed, err := template.New("uri").Parse(uri)
		if err != nil {
			return "", err
		}
		if err := parsed.Execute(&b, tag); err != nil {
			return "", err
		}
		sum, err := sha256File(filepath.Join(folder, path.Base(b.String())))
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("uri: %s\n    sha256: %s", &b, sum), nil
	}
	parsed, err := template.New(manifestName).Funcs(template.FuncMap{"addURIAndSha": addURIAndSha}).Parse(text)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := parsed.Execute(&b, tag); err != nil {
		return nil, err
	}
	var manifest any
	if err := yaml.UnmarshalStrict(b.Bytes(), &manifest); err != nil {
		return nil, err
	}
	for _, kind := range []string{"*.tar.gz", "*.zip"} {
		archives, err := filepath.Glob(filepath.Join(folder, kind))
		if err != nil {
			return nil, err
		}
		for _, a := range archives {
			if !bytes.Contains(b.Bytes(), []byte("/"+filepath.Base(a)+"\n")) {
				return nil, errors.New("the manifest does not list " + filepath.Base(a))
			}
		}
	}
	return b.Bytes(), nil
}
