package scenario

import (
	"strings"
	"testing"
)

// TestCompare holds what counts as the same answer: fair to how people write, and not to guessing.
func TestCompare(t *testing.T) {
	t.Parallel()
	right := RootCause{
		Component: Answer{Value: "device-plugin", Aliases: []string{"NVIDIA device plugin"}},
		Object:    Answer{Value: "Deployment/trainer"},
		Field: Answer{
			Value:   "spec.template.spec.containers[0].resources.limits",
			Aliases: []string{`spec.template.spec.containers[0].resources.limits["nvidia.com/gpu"]`},
		},
		Mechanism: Answer{Value: "requests-more-than-any-node-has", Aliases: []string{"too many GPUs"}},
	}
	yes := Diagnosis{}
	for _, got := range []struct {
		field string
		set   func(*Diagnosis, string)
		right []string
		wrong []string
	}{
		{"component", func(d *Diagnosis, s string) { d.Component = s },
			[]string{"device-plugin", "Device Plugin", "device_plugin", "nvidia-device-plugin", "DevicePlugin"},
			[]string{"", "plugin", "workload", "device-plugin or scheduler", "none"}},
		{"object", func(d *Diagnosis, s string) { d.Object = s },
			[]string{
				"Deployment/trainer", "deploy/trainer", "deployments.apps/trainer", "deployment trainer",
				"team-a/deployment/trainer", "deployment.apps/Trainer", `deployment "trainer"`,
			},
			[]string{"", "trainer", "Pod/trainer", "Deployment/trainer-2", "statefulset/trainer", "deployment"}},
		{"field", func(d *Diagnosis, s string) { d.Field = s },
			[]string{"spec.template.spec.containers[0].resources.limits",
				".spec.template.spec.containers[*].resources.limits", "resources.limits",
				"/spec/template/spec/containers/0/resources/limits",
				`containers[0].resources.limits["nvidia.com/gpu"]`},
			[]string{
				"", "limits", "spec", "spec.template", "resources.requests",
				"resources.limits resources.requests nodeSelector", "0.0",
			}},
		{"mechanism", func(d *Diagnosis, s string) { d.Mechanism = s },
			[]string{"requests-more-than-any-node-has", "Requests more than any node has.", "Too many GPUs!"},
			[]string{"", "requests", "requests-more-than-any-node-has,too-many-gpus", "none"}},
	} {
		for _, text := range append(got.right, got.wrong...) {
			d := yes
			got.set(&d, text)
			want := len(got.right) > 0 && contained(got.right, text)
			for _, score := range Compare(right, d) {
				if score.Field == got.field && score.Right != want {
					t.Errorf("%s %q: %v", got.field, text, score.Right)
				}
			}
		}
	}
}

func contained(all []string, one string) bool {
	for _, s := range all {
		if s == one {
			return true
		}
	}
	return false
}

// TestCompareNothing holds that "nothing is broken" is an answer, which silence is not.
func TestCompareNothing(t *testing.T) {
	t.Parallel()
	none := Answer{Value: "none"}
	right := RootCause{Component: none, Object: none, Field: none, Mechanism: none}
	for got, want := range map[string]bool{
		"none": true, "None": true, "n/a": true, "nothing": true, "": false, "-": false, "workload": false, "no": false,
	} {
		for _, s := range Compare(right, Diagnosis{Component: got, Object: got, Field: got, Mechanism: got}) {
			if s.Right != want {
				t.Errorf("%s %q: %v", s.Field, got, s.Right)
			}
		}
	}
}

// TestKinds holds that the kinds of all short names and plurals come out the same.
func TestKinds(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		"netpol/x": "NetworkPolicy/x", "networkpolicies.networking.k8s.io/x": "NetworkPolicy/x", "svc/x": "Service/x",
		"sa/x":                  "ServiceAccount/x",
		"clusterrolebindings/x": "ClusterRoleBinding/x", "quota/x": "ResourceQuota/x",
		"resourcequotas/x": "ResourceQuota/x", "ds/x": "DaemonSet/x", "jobs.batch/x": "Job/x",
		"runtimeclasses/x": "RuntimeClass/x", "ingresses/x": "Ingress/x", "ing/x": "Ingress/x", "no/x": "Node/x",
		"cm/x": "ConfigMap/x", "storageclasses/x": "StorageClass/x", "sc/x": "StorageClass/x",
		"priorityclasses/x": "PriorityClass/x", "endpoints/x": "Endpoints/x", "config-map/x": "ConfigMap/x",
	} {
		if !sameObject(want, got) {
			t.Errorf("%s is not %s", got, want)
		}
	}
}

// People write YAML and programs JSON; what would be lost, or is no diagnosis, is refused.
func TestReadDiagnosis(t *testing.T) {
	t.Parallel()
	want := Diagnosis{
		Component: "network", Object: "NetworkPolicy/deny", Explanation: "it's \"blocked\" 100 % / of the time",
	}
	for _, text := range []string{
		"component: network\nobject: NetworkPolicy/deny\nexplanation: it's \"blocked\" 100 % / of the time\n",
		"{\n\t\"component\": \"network\",\n\t\"object\": \"NetworkPolicy\\/deny\",\n\t\"explanation\": \"it's \\\"blocked\\\" 100 % / of the time\"}",
		`{component: network, object: NetworkPolicy/deny, explanation: "it's \"blocked\" 100 % / of the time"}`,
	} {
		if got, err := ReadDiagnosis(strings.NewReader(text)); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for text, problem := range map[string]string{
		`{"cause":"x"}`: `unknown field "cause"`, "cause: x": `unknown field "cause"`, "[]": "supported fields",
		"component: [x]": "supported fields", "x": "supported fields",
		`{"component":"x"} {}`: "supported fields", "component: x\ncomponent: y": "already",
		strings.Repeat("x", mostDiagnosis+1): "at most 64 KiB",
	} {
		if got, err := ReadDiagnosis(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%.50s: %+v, %v", text, got, err)
		}
	}
	if got, err := ReadDiagnosis(strings.NewReader(" \n")); err != nil || got != (Diagnosis{}) {
		t.Errorf("%+v, %v", got, err)
	}
}

// Whatever somebody hands in is a diagnosis or an error.
func FuzzReadDiagnosis(f *testing.F) {
	f.Add(`{"component":"x","explanation":"y"}`)
	f.Add("component: x\nfield: &a [*a]\n")
	f.Fuzz(func(t *testing.T, text string) {
		if got, err := ReadDiagnosis(strings.NewReader(text)); err != nil && got != (Diagnosis{}) {
			t.Errorf("%+v, %v", got, err)
		}
	})
}
