package snapshot

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/gpu-fault/kubectl-gpu-fault/test/planted"
)

// secrets has clusters in which three people who did not know the code planted some 2,000 made-up secrets, in the
// places and formats that they knew, and named 890 values that a diagnosis needs. It is compressed so that scanners of
// repositories do not take the secrets for real ones. planted.tsv and keep.tsv name each value, its file and its place;
// unrecognized.tsv has the secrets that look like ordinary values and whose names do not say what they are.
const secrets = "testdata/secrets.tar.zst"

// People post bundles publicly. No secret that was planted may be in one, and what a diagnosis needs must be.
func TestPlantedSecrets(t *testing.T) {
	t.Parallel()
	files := planted.Files(t, secrets)
	bundles := map[string]string{}
	for name, data := range files {
		if path.Ext(name) != ".txtar" {
			continue
		}
		tree, err := txtar.FS(txtar.Parse(data))
		if err != nil {
			t.Fatal(err)
		}
		s, err := Read(tree)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		Redact(s)
		bundles[name] = everything(t, s)
	}
	unrecognized := strings.Split(strings.TrimSpace(string(files["unrecognized.tsv"])), "\n")
	leaked, all := 0, 0
	for _, row := range rows(files["planted.tsv"]) {
		all++
		if holds(bundles[row.file], row.value) && !slices.Contains(unrecognized, row.value) {
			leaked++
			t.Errorf("the bundle of %s has a secret from %s: %q", row.file, row.place, row.value)
		}
	}
	lost, needed := 0, 0
	for _, row := range rows(files["keep.tsv"]) {
		needed++
		if !holds(bundles[row.file], row.value) {
			lost++
			t.Logf("the bundle of %s lacks %q from %s", row.file, row.value, row.place)
		}
	}
	if all < 2000 || needed < 880 {
		t.Errorf("only %d secrets and %d other values were looked for", all, needed)
	}
	if len(unrecognized) > 50 {
		t.Errorf("%d secrets are not recognized", len(unrecognized))
	}
	if lost > 2 {
		t.Errorf("%d of %d values that a diagnosis needs were removed", lost, needed)
	}
	summary := fmt.Sprintf("secrets leaked %d of %d", leaked, all-len(unrecognized))
	t.Log(summary)
	if file := os.Getenv("SECRETS_REPORT"); file != "" {
		if err := os.WriteFile(file, []byte(summary+"\n"), 0o644); err != nil {
			t.Error(err)
		}
	}
}

// holds reports whether a text has a value, as it is or as a string of JSON.
func holds(text, value string) bool {
	quoted, err := json.Marshal(value)
	return strings.Contains(text, value) || err == nil && strings.Contains(text, string(quoted[1:len(quoted)-1]))
}

type row struct{ value, file, place string }

func rows(table []byte) []row {
	var all []row
	for _, cells := range planted.Rows(table) {
		if len(cells) < 3 || cells[0] == "secret" || cells[0] == "string" {
			continue
		}
		file, _, _ := strings.Cut(cells[1], ":")
		all = append(all, row{cells[0], path.Base(file), cells[2]})
	}
	return all
}
