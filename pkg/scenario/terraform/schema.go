package terraform

import (
	"slices"
	"strings"
)

// shape is the form of a field's value.
type shape int

const (
	text   shape = iota
	port         // a string in Terraform; in Kubernetes, a number if it is numeric
	number       // an integer
	truth
	texts  // a list or a set
	labels // a map of strings
	block  // at most one
	blocks // any number
	any_   // any value
)

// field is a field of a resource. json is the field's name in Kubernetes. It is empty if that name is the Terraform
// name in camel case.
type field struct {
	name     string
	shape    shape
	required bool
	json     string
	fields   []field // for a block
}

// kind is a type of resource. The types of the kubernetes provider correspond to Kubernetes objects.
type kind struct {
	// The API version and kind of an object. They are empty for resources of other providers, and for
	// kubernetes_manifest, whose manifest contains them.
	apiVersion, kind string
	fields           []field
}

// manifestType is the resource type for arbitrary manifests.
const manifestType = "kubernetes_manifest"

// kindOfType returns the schema of a resource type. The schemas are those of hashicorp/kubernetes 3 and
// hashicorp/google 7, without computed fields. Types of the kubernetes provider may omit their version
// (kubernetes_role), as in older releases of the provider.
func kindOfType(resource string) (kind, bool) {
	k, known := kinds[resource]
	if !known && strings.HasPrefix(resource, "kubernetes_") {
		k, known = kinds[resource+"_v1"]
	}
	return k, known
}

var metadata = field{name: "metadata", shape: block, required: true, fields: []field{
	{name: "name", required: true}, {name: "namespace"}, {name: "labels", shape: labels},
	{name: "annotations", shape: labels},
}}

var selector = []field{
	{name: "match_labels", shape: labels},
	{name: "match_expressions", shape: blocks, fields: []field{
		{name: "key"}, {name: "operator"}, {name: "values", shape: texts},
	}},
}

var peer = []field{
	{name: "namespace_selector", shape: block, fields: selector},
	{name: "pod_selector", shape: block, fields: selector},
	{name: "ip_block", shape: block, fields: []field{{name: "cidr"}, {name: "except", shape: texts}}},
}

var policyPorts = field{name: "ports", shape: blocks, fields: []field{
	{name: "protocol"}, {name: "port", shape: port}, {name: "end_port", shape: number},
}}

var firewallPorts = []field{{name: "protocol", required: true}, {name: "ports", shape: texts}}

var condition = field{
	name: "condition", shape: block,
	fields: []field{{name: "title", required: true}, {name: "description"}, {name: "expression", required: true}},
}

var kinds = map[string]kind{
	"kubernetes_network_policy_v1": {apiVersion: "networking.k8s.io/v1", kind: "NetworkPolicy", fields: []field{
		metadata,
		{name: "spec", shape: block, required: true, fields: []field{
			{name: "pod_selector", shape: block, required: true, fields: selector},
			{name: "policy_types", shape: texts, required: true},
			{name: "ingress", shape: blocks, fields: []field{{name: "from", shape: blocks, fields: peer}, policyPorts}},
			{name: "egress", shape: blocks, fields: []field{{name: "to", shape: blocks, fields: peer}, policyPorts}},
		}},
	}},
	"kubernetes_role_v1": {apiVersion: "rbac.authorization.k8s.io/v1", kind: "Role", fields: []field{
		metadata,
		{name: "rule", json: "rules", shape: blocks, required: true, fields: []field{
			{name: "api_groups", shape: texts, required: true}, {name: "resources", shape: texts, required: true},
			{name: "resource_names", shape: texts}, {name: "verbs", shape: texts, required: true},
		}},
	}},
	"kubernetes_role_binding_v1": {apiVersion: "rbac.authorization.k8s.io/v1", kind: "RoleBinding", fields: []field{
		metadata,
		{name: "role_ref", shape: block, required: true, fields: []field{
			{name: "api_group", required: true}, {name: "kind", required: true}, {name: "name", required: true},
		}},
		{name: "subject", json: "subjects", shape: blocks, required: true, fields: []field{
			{name: "api_group"}, {name: "kind", required: true}, {name: "name", required: true}, {name: "namespace"},
		}},
	}},
	manifestType: {
		fields: []field{{name: "manifest", shape: any_, required: true}, {name: "computed_fields", shape: texts}},
	},

	"google_compute_firewall": {fields: []field{
		{name: "name", required: true}, {name: "network", required: true}, {name: "project"}, {name: "description"},
		{name: "direction"}, {name: "priority", shape: number}, {name: "disabled", shape: truth},
		{name: "source_ranges", shape: texts}, {name: "destination_ranges", shape: texts},
		{name: "source_tags", shape: texts}, {name: "target_tags", shape: texts},
		{name: "source_service_accounts", shape: texts}, {name: "target_service_accounts", shape: texts},
		{name: "allow", shape: blocks, fields: firewallPorts}, {name: "deny", shape: blocks, fields: firewallPorts},
		{name: "log_config", shape: block, fields: []field{{name: "metadata", required: true}}},
	}},
	"google_project_iam_custom_role": {fields: []field{
		{name: "role_id", required: true}, {name: "title", required: true}, {name: "project"}, {name: "description"},
		{name: "stage"},
		{name: "permissions", shape: texts, required: true},
	}},
	"google_project_iam_member": {fields: []field{
		{name: "project", required: true}, {name: "role", required: true}, {name: "member", required: true}, condition,
	}},
	"google_project_iam_binding": {fields: []field{
		{name: "project", required: true}, {name: "role", required: true},
		{name: "members", shape: texts, required: true}, condition,
	}},
}

// isBlock reports whether a field is written as NAME { }.
func (f field) isBlock() bool { return f.shape == block || f.shape == blocks }

// key returns the name of the field in Kubernetes.
func (f field) key() string {
	if f.json != "" {
		return f.json
	}
	var b strings.Builder
	for i, word := range strings.Split(f.name, "_") {
		if i > 0 {
			word = strings.ToUpper(word[:1]) + word[1:]
		}
		b.WriteString(word)
	}
	return b.String()
}

// named returns the field with the given name.
func named(fields []field, name string) (field, bool) {
	i := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
	if i < 0 {
		return field{}, false
	}
	return fields[i], true
}

// typeOf returns the resource type for an object.
func typeOf(object Object) string {
	for name, k := range kinds {
		if k.kind != "" && k.kind == object["kind"] && k.apiVersion == object["apiVersion"] {
			return name
		}
	}
	return manifestType
}
