package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

// sbom writes the platform's software bill of materials in CycloneDX format. It uses the build information that Go
// embeds in the program and in the helpers: the version and hash of each module.
func (r release) sbom(ctx context.Context, staged string, p platform, binary string) error {
	bill, err := billOf(ctx, r.version, binary)
	if err != nil {
		return fmt.Errorf("bill of materials for %s: %w", p, err)
	}
	// Read the helpers from disk. This program may embed none, because it was built before them.
	helpers, err := filepath.Glob("debugpod/helper/gpu-fault-node-linux-*.zst")
	if err != nil || len(helpers) == 0 {
		return fmt.Errorf("bill of materials for %s: no helpers found; to build them, run: make helpers", p)
	}
	for _, packed := range helpers {
		inside, err := r.billOfHelper(ctx, staged, packed)
		if err != nil {
			return fmt.Errorf("bill of materials for %s: %s: %w", p, packed, err)
		}
		bill.add(inside)
	}
	if metadata, is := bill["metadata"].(map[string]any); is {
		metadata["timestamp"] = r.date // the tool always uses the current time
	}
	stamped, err := json.MarshalIndent(bill, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(staged, p.base(r.version)+".cdx.json"), append(stamped, '\n'), 0o644)
}

func (r release) billOfHelper(ctx context.Context, staged, packed string) (bill, error) {
	raw, err := os.ReadFile(packed)
	if err != nil {
		return nil, err
	}
	decoder, err := zstd.NewReader(nil)
	if err != nil {
		return nil, err
	}
	defer decoder.Close()
	program, err := decoder.DecodeAll(raw, nil)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(staged, "helper-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "gpu-fault-node")
	if err := os.WriteFile(file, program, 0o700); err != nil {
		return nil, err
	}
	return billOf(ctx, r.version, file)
}

// bill is a CycloneDX bill of materials in JSON.
type bill map[string]any

func billOf(ctx context.Context, version, binary string) (bill, error) {
	cmd := exec.CommandContext(ctx, "go", "tool", "-modfile=hack/tools/release/go.mod", "cyclonedx-gomod",
		"bin", "-json", "-std", "-noserial", "-notimestamp", "-version", version, binary)
	said, err := output(cmd)
	if err != nil {
		return nil, err
	}
	var b bill
	if err := json.Unmarshal([]byte(said), &b); err != nil {
		return nil, fmt.Errorf("cyclonedx-gomod's output is not valid JSON: %w", err)
	}
	return b, nil
}

// add adds the missing components of another program, and their dependencies.
func (b bill) add(other bill) {
	for list, key := range map[string]string{"components": "bom-ref", "dependencies": "ref"} {
		mine, _ := b[list].([]any)
		has := map[any]bool{}
		for _, one := range mine {
			has[field(one, key)] = true
		}
		more, _ := other[list].([]any)
		for _, one := range more {
			if name := field(one, key); !has[name] {
				has[name] = true
				mine = append(mine, one)
			}
		}
		b[list] = mine
	}
}

func field(of any, name string) any {
	object, _ := of.(map[string]any)
	return object[name]
}
