package scenario

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strings"

	"filippo.io/age"
	"filippo.io/age/armor"
	"sigs.k8s.io/yaml"
)

// SealedKind is the kind of a file with an encrypted answer.
const SealedKind = "SealedScenario"

// ErrSealed means that none of the identities can decrypt a sealed file.
var ErrSealed = errors.New("the answer is sealed: an age identity of one of its recipients is required")

// sealedFile is the format that Export writes: the public half in plain text, and the whole file in encrypted
// form.
type sealedFile struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`
	Requires   Requires `json:"requires,omitzero"`
	Public     Public   `json:"public"`
	Encrypted  string   `json:"encrypted"`
}

var sealedLine = regexp.MustCompile(`(?m)^kind:\s*["']?` + SealedKind + `["']?\s*$`)

func isSealed(data []byte) bool { return sealedLine.Match(data) }

// Export writes the public half of the scenario in plain text, and the whole scenario encrypted for the recipients.
// age.NewScryptRecipient creates a recipient from a passphrase. Parameters, setup and inject also reveal the answer, so
// they are only in the encrypted part.
func Export(w io.Writer, s *Scenario, recipients ...age.Recipient) error {
	if len(recipients) == 0 {
		return errors.New("a sealed scenario requires a passphrase or an age recipient")
	}
	src, err := s.from()
	if err != nil {
		return err
	}
	var armored bytes.Buffer
	if err := encrypt(&armored, src.data, recipients); err != nil {
		return fmt.Errorf("seal scenario %s: %w", s.Metadata.Name, err)
	}
	out := bytes.NewBufferString(
		"# The answer is encrypted with age. To decrypt it, run: kubectl gpu-fault scenario start --file THIS --identity KEY\n",
	)
	for _, part := range []any{
		struct {
			APIVersion string `json:"apiVersion"`
		}{APIVersion},
		struct {
			Kind string `json:"kind"`
		}{SealedKind},
		struct {
			Metadata any `json:"metadata"`
		}{src.root.get("metadata").plain()},
		struct {
			Requires any `json:"requires,omitempty"`
		}{half(src.root, "requires")},
		struct {
			Public any `json:"public"`
		}{half(src.root, "public")},
		struct {
			Encrypted string `json:"encrypted"`
		}{armored.String()},
	} {
		text, err := yaml.Marshal(part)
		if err != nil {
			return err
		}
		if !bytes.Equal(text, []byte("{}\n")) {
			out.Write(text)
		}
	}
	_, err = w.Write(out.Bytes())
	return err
}

// half returns a part of the file with its expressions.
func half(root *node, name string) any {
	n := root.get(name)
	if n == nil {
		return nil
	}
	c := n.clone()
	c.settle()
	return c.plain()
}

// settle modifies the node so that its plain method preserves all expressions.
func (n *node) settle() {
	n.later = false
	for _, e := range n.keys {
		e.value.settle()
	}
	for _, item := range n.items {
		item.settle()
	}
}

func encrypt(out io.Writer, data []byte, recipients []age.Recipient) error {
	armored := armor.NewWriter(out)
	w, err := age.Encrypt(armored, recipients...)
	if err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		return err
	}
	return errors.Join(w.Close(), armored.Close())
}

// ParseSealed decrypts a file written by Export. If no identity matches, it returns ErrSealed and a scenario with only
// its public half.
func ParseSealed(file string, data []byte, identities ...age.Identity) (*Scenario, error) {
	r := &reader{file: file}
	root := r.read(data)
	if root != nil && len(r.problems) == 0 {
		c := &checker{reader: r, expressions: true}
		c.check(root, reflect.TypeFor[sealedFile](), "", roleText)
		c.is(root, "", "apiVersion", APIVersion)
		c.is(root, "", "kind", SealedKind)
	}
	if root == nil || len(r.problems) > 0 {
		return nil, r.sorted()
	}
	shown, err := decode(root)
	if err != nil {
		return nil, err
	}
	text, _ := root.get("encrypted").value.(string)
	opened, err := decrypt(text, identities)
	if err != nil {
		if errors.Is(err, ErrSealed) {
			return shown, err
		}
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	s, err := Parse(file+" (sealed)", opened)
	if err != nil {
		return nil, err
	}
	for _, part := range []string{"metadata", "requires", "public"} {
		if !equalJSON(half(root, part), half(s.source.root, part)) {
			return nil,
				fmt.Errorf("%s: %s was changed after the export, so it no longer matches the sealed half", file, part)
		}
	}
	return s, nil
}

func decrypt(text string, identities []age.Identity) ([]byte, error) {
	if len(identities) == 0 {
		return nil, ErrSealed
	}
	r, err := age.Decrypt(armor.NewReader(strings.NewReader(text)), identities...)
	var none *age.NoIdentityMatchError
	switch {
	case errors.As(err, &none):
		return nil, fmt.Errorf("%w; none of the specified identities matches", ErrSealed)
	case err != nil:
		return nil, fmt.Errorf("open the sealed half: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("open the sealed half: %w", err)
	}
	return data, nil
}

func equalJSON(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}
