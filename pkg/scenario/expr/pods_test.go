package expr

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// file follows what the kubelet mounts, and environment and arguments what it sets.
func TestFilesAndVariablesOfContainers(t *testing.T) {
	t.Parallel()
	const sources = `
- {kind: ConfigMap, metadata: {name: c}, data: {a.yml: one, b: two}}
- {kind: Secret, metadata: {name: s}, data: {a.yml: dGhyZWU=}}`
	spec := func(volume, mount string) string {
		return "{volumes: [{name: v, " + volume + "}, {name: w, emptyDir: {}}], containers: [{name: main, volumeMounts: [" +
			"{name: v, mountPath: /etc/x" + mount + "}, {name: w, mountPath: /etc/x/w}]}]}"
	}
	file := func(path string) string { return "file(o, 'main', '" + path + "', with)" }
	for name, test := range map[string]struct {
		o, ask string
		want   any
	}{
		"a ConfigMap":         {spec("configMap: {name: c}", ""), file("/etc/x/a.yml"), "one"},
		"another path":        {spec("configMap: {name: c}", ""), file("/etc/x//../x/b"), "two"},
		"items":               {spec("configMap: {name: c, items: [{key: b, path: sub/a.yml}]}", ""), file("/etc/x/sub/a.yml"), "two"},
		"not among the items": {spec("configMap: {name: c, items: [{key: b, path: b}]}", ""), file("/etc/x/a.yml"), ""},
		"a Secret":            {spec("secret: {secretName: s}", ""), file("/etc/x/a.yml"), "three"},
		"projected": {
			spec("projected: {sources: [{secret: {name: s, items: [{key: a.yml, path: z}]}}, {configMap: {name: c}}]}", ""),
			file("/etc/x/z") + " + " + file("/etc/x/a.yml"), "threeone",
		},
		"a directory of the volume": {
			spec("configMap: {name: c, items: [{key: b, path: sub/f}]}", ", subPath: sub"), file("/etc/x/f"), "two",
		},
		"a file of the volume":    {spec("configMap: {name: c}", "/b, subPath: b"), file("/etc/x/b"), "two"},
		"another volume above it": {spec("configMap: {name: c}", ""), file("/etc/x/w/a.yml"), ""},
		"not mounted":             {spec("configMap: {name: c}", ""), file("/etc/xa.yml"), ""},
		"does not exist":          {spec("configMap: {name: d}", ""), file("/etc/x/a.yml"), ""},
		"variables": {
			"{envFrom: [{prefix: P_, configMapRef: {name: c}}, {secretRef: {name: none, optional: true}}], env: [{name: A, value: $(P_b)/$$(X)/$(X)}, " +
				"{name: B, valueFrom: {secretKeyRef: {name: s, key: a.yml}}}, {name: C, valueFrom: {configMapKeyRef: {name: c, key: z, optional: true}}}, {name: D, value: $(B)$}]}",
			"environment(o, with)",
			map[string]any{"P_a.yml": "one", "P_b": "two", "A": "two/$(X)/$(X)", "B": "three", "D": "three$"},
		},
		"arguments": {
			"{args: [-a, $(A), -b=$(B), $$(A), $(X)], env: [{name: A, valueFrom: {configMapKeyRef: {name: c, key: b}}}, " +
				"{name: B, valueFrom: {secretKeyRef: {name: s, key: a.yml}}}]}",
			"arguments(o, with)", []any{"-a", "two", "-b=three", "$(A)", "$(X)"},
		},
		"no arguments": {"{name: main}", "arguments(o, with)", []any{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var o, with any
			for text, out := range map[string]*any{test.o: &o, sources: &with} {
				if err := yaml.Unmarshal([]byte(text), out); err != nil {
					t.Fatal(err)
				}
			}
			program, err := Compile(test.ask, "o", "with")
			if err != nil {
				t.Fatal(err)
			}
			got, err := program.Eval(t.Context(), Vars{"o": o, "with": with})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
