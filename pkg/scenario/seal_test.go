package scenario

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"
)

func export(t *testing.T, s *Scenario, to ...age.Recipient) string {
	t.Helper()
	var b bytes.Buffer
	if err := Export(&b, s, to...); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func identity(t *testing.T) *age.X25519Identity {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestSealed holds that a sealed file shows what the candidate may read and no word of the answer, and that its owner
// gets back what was exported.
func TestSealed(t *testing.T) {
	t.Parallel()
	s, id := good(t), identity(t)
	text := export(t, s, id.Recipient())
	for _, secret := range []string{
		"oneOf", "resource-name", "misspelt", "wrongFixes", "rootCause", "Deployment", "the most that",
	} {
		shown, _, _ := strings.Cut(text, "encrypted:")
		if strings.Contains(shown, secret) && !strings.Contains(shown, "mechanism:\n    - "+secret) &&
			secret != "misspelt" {
			t.Errorf("%q can be read in\n%s", secret, shown)
		}
	}
	for _, public := range []string{
		"kind: SealedScenario", "title: Training of ${p.team} does not start", "-----BEGIN AGE ENCRYPTED FILE-----",
		"difficulty: junior",
	} {
		if !strings.Contains(text, public) {
			t.Errorf("%q cannot be read in\n%s", public, text)
		}
	}
	file := filepath.Join(t.TempDir(), "sealed.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	back, err := Load(file, identity(t), id)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s, back, withoutSource); diff != "" {
		t.Error(diff)
	}
	if _, err := back.Resolve(1, nil, SampleFacts()); err != nil {
		t.Error(err)
	}
	for _, ids := range [][]age.Identity{nil, {identity(t)}} {
		half, err := Load(file, ids...)
		if !errors.Is(err, ErrSealed) || half == nil || half.Public.Title != s.Public.Title ||
			half.Metadata.Minutes != 15 || half.Sealed.Story != "" || half.Params != nil {
			t.Errorf("without the right identity: %+v, %v", half, err)
		}
	}
}

// TestSealedByPassphrase holds that a passphrase does, and a wrong one is told.
func TestSealedByPassphrase(t *testing.T) {
	t.Parallel()
	recipient, err := age.NewScryptRecipient("open sesame")
	if err != nil {
		t.Fatal(err)
	}
	recipient.SetWorkFactor(10)
	text := export(t, good(t), recipient)
	right, _ := age.NewScryptIdentity("open sesame")
	wrong, _ := age.NewScryptIdentity("open barley")
	if _, err := ParseSealed("f", []byte(text), right); err != nil {
		t.Error(err)
	}
	if _, err := ParseSealed("f", []byte(text), wrong); !errors.Is(err, ErrSealed) {
		t.Errorf("a wrong passphrase: %v", err)
	}
}

// TestSealedTampered holds that a public half which was changed afterwards (more rights for the candidate, say) is
// refused, and so is a file that is damaged.
func TestSealedTampered(t *testing.T) {
	t.Parallel()
	id := identity(t)
	text := export(t, good(t), id.Recipient())
	for change, want := range map[[2]string]string{
		{
			"access:\n", "access:\n    nodeShell: true\n",
		}: "public was changed after the export, so it no longer matches the sealed half",
		{
			"minutes: 15", "minutes: 150",
		}: "metadata was changed after the export, so it no longer matches the sealed half",
		{
			"gpus: 2", "gpus: 1",
		}: "requires was changed after the export, so it no longer matches the sealed half",
		{
			"requires:\n", "requires:\n  nodeAccess: true\n",
		}: "requires was changed after the export, so it no longer matches the sealed half",
		{"encrypted: |", "encrypted: |\n  x"}:                        "open the sealed half",
		{"difficulty: junior", "dificulty: junior"}:                  "unknown field; did you mean difficulty?",
		{"kind: SealedScenario", "kind: SealedScenario\nsealed: {}"}: "sealed: unknown field",
	} {
		changed := strings.Replace(text, change[0], change[1], 1)
		if changed == text {
			t.Fatalf("no %q in\n%s", change[0], text)
		}
		if _, err := ParseSealed("f", []byte(changed), id); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, and not %q", change[1], err, want)
		}
	}
	if err := Export(&bytes.Buffer{}, good(t)); err == nil {
		t.Error("sealed for nobody")
	}
}
