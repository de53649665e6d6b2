package terraform

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

func policy(namespace, name string, spec Object) Object {
	return Object{
		"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
		"metadata": Object{"name": name, "namespace": namespace}, "spec": spec,
	}
}

// lab returns a module as scenarios have them: all kinds of peers and ports, a role and bindings, a manifest, and a
// cloud's rules.
func lab() Source {
	return Source{
		Module: Module{
			Objects: []Object{
				policy("tenant-a", "default-deny",
					Object{"podSelector": Object{}, "policyTypes": []any{"Ingress", "Egress"}}),
				policy("tenant-a", "license", Object{
					"podSelector": Object{"matchLabels": Object{"app.kubernetes.io/name": "x"}},
					"policyTypes": []any{"Egress"},
					"egress": []any{
						Object{
							"to": []any{
								Object{"namespaceSelector": Object{
									"matchLabels": Object{"kubernetes.io/metadata.name": "shared"},
								}, "podSelector": Object{}},
								Object{"ipBlock": Object{"cidr": "10.0.0.0/8", "except": []any{"10.1.0.0/16"}}},
							},
							"ports": []any{
								Object{"protocol": "TCP", "port": int64(8080)},
								Object{"protocol": "UDP", "port": "dns"}, Object{"port": int64(1), "endPort": int64(9)},
							},
						},
						Object{},
					},
				}),
				policy("shared", "license", Object{
					"podSelector": Object{}, "policyTypes": []any{"Ingress"},
					"ingress": []any{Object{"from": []any{Object{"namespaceSelector": Object{"matchExpressions": []any{
						Object{
							"key": "kubernetes.io/metadata.name", "operator": "In",
							"values": []any{"tenant-b", "tenant-a"},
						},
					}}}}}},
				}),
				{
					"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
					"metadata": Object{"name": "launcher-jobs", "namespace": "tenant-a"},
					"rules": []any{
						Object{
							"apiGroups": []any{"batch", ""}, "resources": []any{"jobs"},
							"verbs": []any{"get", "create"},
						},
					},
				},
				{
					"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
					"metadata": Object{"name": "launcher", "namespace": "tenant-a"},
					"roleRef": Object{
						"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "launcher-jobs",
					},
					"subjects": []any{Object{"kind": "ServiceAccount", "name": "launcher-sa", "namespace": "default"}},
				},
				{
					"apiVersion": "apps/v1", "kind": "Deployment",
					"metadata": Object{"name": "launcher", "namespace": "tenant-a"},
					"spec": Object{"replicas": int64(1), "template": Object{"spec": Object{"containers": []any{
						Object{"name": "main", "command": []any{
							"sh", "-c",
							"echo ${HOME} %{x} \"$(date)\"\n\tuntil get http://shared.tenant-a.svc; do :; done",
						}, "ratio": 0.5},
					}}}},
				},
			},
			Resources: map[string]map[string]Body{
				"google_compute_firewall": {
					"license": {
						"name": "tenant-a-license", "network": "gpu", "direction": "EGRESS", "priority": int64(1000),
						"target_tags": []any{"tenant-a"},
						"allow":       []any{Body{"protocol": "tcp", "ports": []any{"8080"}}, Body{"protocol": "icmp"}},
					},
				},
				"google_project_iam_member": {"launcher": {
					"project": "gpu", "role": "roles/viewer",
					"member": "serviceAccount:launcher@gpu.iam.gserviceaccount.com",
				}},
			},
		},
		Variables: map[string]string{"tenant": "tenant-a", "platform": "shared", "app": "launcher"},
		About:     "What belongs to tenant-a.",
	}
}

// What is written is read back exactly, and refers to its variables, so that who mends a variable mends all of it.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	source := lab()
	files, err := source.Write()
	if err != nil {
		t.Fatal(err)
	}
	module, err := Read(files)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(source.Module, *module); diff != "" {
		t.Error(diff)
	}
	main := string(files["main.tf"])
	for _, want := range []string{
		"var.tenant", `"${var.tenant}-license"`, "serviceAccount:${var.app}@gpu",
		"kubernetes_role_v1.launcher_jobs.metadata[0].name", `"${var.app}-sa"`,
		`resource "kubernetes_network_policy_v1" "license"`, `resource "kubernetes_network_policy_v1" "license_shared"`,
	} {
		if !strings.Contains(main, want) {
			t.Errorf("main.tf lacks %s:\n%s", want, main)
		}
	}
	if !strings.Contains(string(files["imports.tf"]), `id = "${var.tenant}/default-deny"`) {
		t.Errorf("%s", files["imports.tf"])
	}
	files["terraform.tfvars"] = []byte("tenant = \"tenant-z\"\n")
	module, err = Read(files)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range module.Objects[:2] {
		if got := textAt(object, "metadata", "namespace"); got != "tenant-z" {
			t.Errorf("%s is in %s", textAt(object, "metadata", "name"), got)
		}
	}
}

// What Terraform's provider cannot hold is told, and not lost.
func TestWriteRefuses(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Source){
		"field not supported":       func(s *Source) { s.Objects[0]["spec"].(Object)["stray"] = "x" },
		"does not support":          func(s *Source) { s.Objects[0]["spec"].(Object)["egress"] = []any{} },
		"unsupported resource type": func(s *Source) { s.Resources["null_resource"] = map[string]Body{"x": {}} },
		"argument not supported": func(s *Source) {
			s.Resources["google_compute_firewall"]["license"]["provisioner"] = []any{Body{}}
		},
		"invalid Terraform name": func(s *Source) { s.Resources["google_compute_firewall"]["a b"] = Body{} },
		"invalid variable name":  func(s *Source) { s.Variables["a b"] = "x" },
		"is missing": func(s *Source) {
			delete(s.Resources["google_compute_firewall"]["license"], "network")
		},
	} {
		s := lab()
		change(&s)
		if _, err := s.Write(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}

const head = `
variable "tenant" {
  type    = string
  default = "tenant-a"
}
`

// Whatever words are used, it is the value that counts.
func TestReadByValue(t *testing.T) {
	t.Parallel()
	want := []Object{
		policy("tenant-a", "names-tcp", Object{
			"podSelector": Object{}, "policyTypes": []any{"Egress"},
			"egress": []any{Object{
				"ports": []any{
					Object{"protocol": "TCP", "port": int64(53)}, Object{"protocol": "TCP", "port": int64(54)},
				},
			}},
		}),
		policy("tenant-a", "names-udp", Object{
			"podSelector": Object{}, "policyTypes": []any{"Egress"},
			"egress": []any{Object{
				"ports": []any{
					Object{"protocol": "UDP", "port": int64(53)}, Object{"protocol": "UDP", "port": int64(54)},
				},
			}},
		}),
	}
	one := func(protocol string) string {
		return `
resource "kubernetes_network_policy_v1" "` + protocol + `" {
  metadata {
    name      = "names-` + protocol + `"
    namespace = var.tenant
  }
  spec {
    pod_selector {}
    policy_types = ["Egress"]
    egress {
      ports {
        protocol = "` + strings.ToUpper(protocol) + `"
        port     = "53"
      }
      ports {
        protocol = "` + strings.ToUpper(protocol) + `"
        port     = 54
      }
    }
  }
}
`
	}
	for name, files := range map[string]Files{
		"plain": {"a.tf": []byte(head + one("tcp") + one("udp"))},
		"for_each and dynamic": {"a.tf": []byte(head + `
locals {
  ports = { for i, p in concat([53], local.more) : format("p%d", i) => p }
  more  = [54]
}
resource "kubernetes_network_policy" "names" {
  for_each   = toset(["tcp", "udp"])
  depends_on = [local.ports]
  metadata {
    name      = "names-${each.key}"
    namespace = lower(upper(var.tenant))
  }
  spec {
    pod_selector {}
    policy_types = tolist(["Egress"])
    egress {
      dynamic "ports" {
        for_each = local.ports
        iterator = it
        content {
          protocol = upper(each.value)
          port     = it.value
        }
      }
    }
  }
  lifecycle { create_before_destroy = true }
}
`)},
		"count, tfvars and a reference": {
			"a.tf": []byte(`
variable "tenant" { type = string }
variable "policies" {
  type = list(object({ protocol = string, ports = optional(list(number), [53, 54]) }))
}
` + `
resource "kubernetes_manifest" "names" {
  count    = length(var.policies)
  manifest = {
    apiVersion = "networking.k8s.io/v1"
    kind       = "NetworkPolicy"
    metadata   = { name = "names-${lower(var.policies[count.index].protocol)}", namespace = var.tenant, labels = null }
    spec = {
      podSelector = {}
      policyTypes = ["Egress"]
      egress      = [{ ports = [for p in var.policies[count.index].ports : { protocol = var.policies[count.index].protocol, port = p }] }]
    }
  }
}
output "first" { value = kubernetes_manifest.names[0].manifest.metadata.name }
`),
			"terraform.tfvars": []byte(
				"tenant = \"tenant-b\"\npolicies = [{ protocol = \"TCP\" }, { protocol = \"UDP\" }]\n",
			),
			"z.auto.tfvars": []byte("tenant = \"tenant-a\"\n"),
			"README.md":     []byte("resource"),
			".hidden.tf":    []byte("nonsense"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			module, err := Read(files)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, module.Objects); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A module with all that candidates would use means what OpenTofu 1.12.6 makes of it: the golden file was compared with
// the values of its plan, with providers of the same schemas.
func TestReadAsOpenTofu(t *testing.T) {
	t.Parallel()
	module, err := ReadFolder("testdata/hard")
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.MarshalIndent(module, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "hard/module.json", string(text)+"\n")
}

// Resources of a cloud keep Terraform's names, with the key where there are more.
func TestReadResources(t *testing.T) {
	t.Parallel()
	module, err := Read(Files{"a.tf": []byte(`
resource "google_project_iam_custom_role" "runs" {
  role_id     = "runs"
  title       = "Runs"
  permissions = toset(["container.jobs.get", "container.jobs.create"])
}
resource "google_project_iam_member" "runs" {
  for_each = { a = "launcher", b = "sweeper" }
  project  = "gpu"
  role     = "projects/gpu/roles/${google_project_iam_custom_role.runs.role_id}"
  member   = "serviceAccount:${each.value}@gpu"
}
`)})
	if err != nil {
		t.Fatal(err)
	}
	members := module.Resources["google_project_iam_member"]
	if got := slices.Sorted(maps.Keys(members)); !slices.Equal(got, []string{`runs["a"]`, `runs["b"]`}) ||
		members[`runs["b"]`]["role"] != "projects/gpu/roles/runs" {
		t.Errorf("%v", members)
	}
	if list := module.List("google_project_iam_member"); len(list) != 2 ||
		list[0].(Body)["member"] != "serviceAccount:launcher@gpu" {
		t.Errorf("%v", list)
	}
}

// What is wrong is told with its place, and what to do.
func TestReadRefuses(t *testing.T) {
	t.Parallel()
	role := func(inner string) string {
		return "resource \"kubernetes_role_v1\" \"x\" {\n  metadata {\n    name = \"x\"\n  }\n" + inner + "\n}\n"
	}
	const rule = "  rule {\n    api_groups = [\"batch\"]\n    resources = [\"jobs\"]\n    verbs = [\"get\"]\n  }"
	for text, want := range map[string]string{
		"resource \"kubernetes_role_v1\" \"x\" {":    "a.tf:1:",
		role("  rule = []"):                          "a.tf:5:3: rule must be a block: write rule { ... } without =",
		role("  rules {\n  }"):                       "a.tf:5:3: unsupported block rules; did you mean rule?",
		role("  rule {\n    verb = []\n  }"):         "a.tf:6:5: unsupported argument verb; did you mean verbs?",
		role("  rule {\n    verbs = [\"get\"]\n  }"): "a.tf:5:3: api_groups is missing",
		role(""): "rule is missing",
		role(rule + "\n  metadata {\n    name = \"y\"\n  }"):          "only one metadata block is allowed",
		role(rule + "\n  count = 1.5"):                                "count must be an integer",
		role(rule + "\n  count = 1\n  for_each = {}"):                 "only one of the two is allowed",
		role(rule + "\n  for_each = [\"a\"]"):                         "toset(...)",
		role(rule + "\n  lifecycle {\n    ignore_changes = all\n  }"): "remove it",
		role(rule +
			"\n  provisioner \"local-exec\" {\n    command = \"id\"\n  }"): "provisioner is not supported",
		role(rule) +
			role(rule): "kubernetes_role_v1.x is already declared in a.tf:1",
		role(rule) + strings.Replace(role(rule), `"x" {`, `"y" {`, 1):        "is already managed",
		role("  rule {\n    verbs = var.verbs\n  }"):                         "There is no variable",
		role("  rule {\n    verbs = [null]\n  }"):                            "null element",
		role("  rule {\n    verbs = null\n  }"):                              "must not be null",
		role("  rule {\n    verbs = { a = 1 }\n  }"):                         "verbs must be a list of strings",
		`module "x" { source = "./x" }`:                                      "module blocks are not supported: write the module's resources here",
		`data "google_project" "x" {}`:                                       "replace the reference with the value",
		`removed { from = kubernetes_role_v1.x }`:                            "remove this block",
		`resource "null_resource" "x" {}`:                                    "unsupported resource type null_resource",
		`resource "kubernetes_rol_v1" "x" {}`:                                "did you mean kubernetes_role_v1?",
		`frobnicate "x" {}`:                                                  "unsupported block",
		`x = 1`:                                                              "terraform.tfvars",
		`variable "x" {}`:                                                    "variable x has no value: add a default",
		"variable \"x\" {\n  type    = number\n  default = \"many\"\n}":      "a.tf:3:",
		`locals { a = local.b }` + "\n" + `locals { b = local.a }`:           "circular dependency",
		`locals { a = file("/etc/passwd") }`:                                 "no function named",
		`locals { a = path.module }`:                                         "path.module is not supported",
		`locals { a = data.google_project.x.id }`:                            "replace the reference with the value",
		`resource "kubernetes_manifest" "x" { manifest = { kind = "Pod" } }`: "the manifest has no apiVersion",
		`resource "kubernetes_manifest" "x" { manifest = "x" }`:              "the manifest has no apiVersion",
		// What would take the machine of who grades it.
		`locals { a = [for a in range(100) : [for b in range(100) : [for c in range(100) : c]]] }`: "for expressions are too expensive",
		"locals {\n  s = \"" + strings.Repeat("x", 9999) +
			"\"\n  l = range(100)\n  a = [for x in local.l : [for y in local.l : \"" +
			strings.Repeat("${local.s}", 29) + "\"]]\n}": "for expressions are too expensive",
		`locals { a = range(1000) }`:                                                   "the maximum is 100",
		`locals { a = format("%99999999d", 1) }`:                                       "width greater than 999",
		`locals { a = [` + strings.Repeat("1,", 200) + `] }`:                           "the maximum is 100",
		`locals { a = ` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + ` }`: "nested more than",
		`locals { a = ` + strings.Repeat("!", 5000) + `true }`:                         "nested more than",
		doubled("concat(local.%s, local.%s)", `["x", "y"]`):                            "the maximum is 100",
		doubled(`"${local.%s}${local.%s}"`, `"xxxxxxxxxxxxxxxx"`):                      "more than 16 KiB",
		doubled("[local.%s, local.%s]", `"x"`):                                         "more than 5000 values",
	} {
		_, err := Read(Files{"a.tf": []byte(text)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.120s\n%v lacks %q", text, err, want)
		}
	}
	for name, want := range map[string]string{
		"a.tf.json": "must be a .tf file", "a.tofu": "must be a .tf file", "override.tf": "override",
		"x_override.tf": "override", "terraform.tfvars.json": ".tf file",
	} {
		if _, err := Read(Files{name: []byte("{}")}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v lacks %q", name, err, want)
		}
	}
}

// doubled returns a chain of locals, each twice the one before.
func doubled(expression, first string) string {
	var b strings.Builder
	b.WriteString("locals {\n  a = " + first + "\n")
	for c := 'b'; c <= 'z'; c++ {
		before := string(c - 1)
		b.WriteString("  " + string(c) + " = " + strings.ReplaceAll(expression, "%s", before) + "\n")
	}
	return b.String() + "}\n"
}

// FuzzRead holds that no text makes the reader fall over or take its time, and that what it accepts can be written and
// read again.
func FuzzRead(f *testing.F) {
	files, err := lab().Write()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(files["main.tf"])+string(files["variables.tf"]), "tenant = \"x\"")
	f.Add("locals { a = [for x in toset([\"a\"]) : upper(x) if x != \"\"] }", "")
	f.Add(
		"resource \"kubernetes_manifest\" \"x\" {\n  for_each = { a = 1 }\n  manifest = { apiVersion = \"v1\", kind = each.key, metadata = { name = \"n\" } }\n}",
		"",
	)
	f.Add(
		"variable \"x\" {\n  type = object({ a = optional(string, \"b\") })\n  default = {}\n}\nlocals { y = try(var.x.a[0], one(1), var.x.a) }",
		"x = { a = null }",
	)
	f.Fuzz(func(t *testing.T, text, values string) {
		began := time.Now()
		module, err := Read(Files{"a.tf": []byte(text), "terraform.tfvars": []byte(values)})
		if took := time.Since(began); took > time.Minute {
			t.Fatalf("reading took %s", took)
		}
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without a word")
			}
			return
		}
		again, err := Source{Module: Module{Objects: module.Objects}}.Write()
		if err != nil {
			return // a manifest may have what no provider holds
		}
		back, err := Read(again)
		if err != nil || !equal(anyOf(module.Objects), anyOf(back.Objects)) {
			t.Errorf("%v: %v became %v", err, module.Objects, back)
		}
	})
}

func anyOf(objects []Object) []any {
	all := make([]any, len(objects))
	for i, object := range objects {
		all[i] = object
	}
	return all
}
