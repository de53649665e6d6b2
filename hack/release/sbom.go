package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// sbom writes the platform's software bill of materials in CycloneDX, from what Go wrote into the very program: each module, with
// version and hash.
func (r release) sbom(ctx context.Context, staged string, p platform, binary string) error {
	cmd := exec.CommandContext(ctx, "go", "tool", "-modfile=hack/tools/release/go.mod", "cyclonedx-gomod",
		"bin", "-json", "-std", "-noserial", "-notimestamp", "-version", r.version, binary)
	bom, err := output(cmd)
	if err != nil {
		return fmt.Errorf("bill of materials for %s: %w", p, err)
	}
	// The tool knows only the present time.
	const metadata = `"metadata": {`
	stamped := bytes.Replace([]byte(bom), []byte(metadata), []byte(metadata+"\n    \"timestamp\": \""+r.date+`",`), 1)
	if !json.Valid(stamped) {
		return fmt.Errorf("bill of materials for %s: cyclonedx-gomod's output is no JSON", p)
	}
	return os.WriteFile(filepath.Join(staged, p.base(r.version)+".cdx.json"), append(stamped, '\n'), 0o644)
}
