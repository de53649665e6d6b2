variable "tenants" {
  type = map(object({ ports = optional(list(number), [53, 54]), tags = optional(set(string)) }))
}
variable "region" { default = "X" }
locals {
  more  = { for name, t in var.tenants : upper(name) => t if length(t.ports) > 1 }
  flat  = flatten([for name, t in var.tenants : [for p in t.ports : { tenant = name, port = p }]])
  label = format("%s-%03d", lower(var.region), 7)
  rules = merge({ a = ["x"] }, { b = distinct(concat(["y", "z"], ["y"])) })
  text  = <<-EOT
    hello ${local.label}
    %{for k, v in local.rules~}
    ${k}=${join(",", v)};
    %{endfor~}
  EOT
}
resource "kubernetes_network_policy_v1" "p" {
  for_each = local.more
  metadata {
    name        = "p-${lower(each.key)}"
    namespace   = each.key == "B" ? "bee" : trimsuffix("aye-x", "-x")
    labels      = { text = replace(trimspace(local.text), "\n", "|"), n = length(local.flat) }
    annotations = null
  }
  spec {
    pod_selector {}
    policy_types = sort(tolist(toset(["Ingress", "Egress", "Egress"])))
    dynamic "egress" {
      for_each = [for f in local.flat : f if upper(f.tenant) == each.key]
      iterator = rule
      content {
        dynamic "ports" {
          for_each = toset(["UDP", "TCP"])
          content {
            protocol = ports.value
            port     = rule.value.port + rule.key
          }
        }
      }
    }
  }
  lifecycle { prevent_destroy = true }
}
resource "kubernetes_role_v1" "r" {
  count = 2
  metadata { name = "r${count.index}" }
  dynamic "rule" {
    for_each = local.rules
    content {
      api_groups = [""]
      resources  = rule.value
      verbs      = coalescelist([], keys(local.rules))
    }
  }
}
resource "kubernetes_role_binding_v1" "b" {
  metadata {
    name      = kubernetes_role_v1.r[1].metadata[0].name
    namespace = kubernetes_network_policy_v1.p["B"].metadata[0].namespace
  }
  role_ref {
    api_group = "rbac.authorization.k8s.io"
    kind      = "Role"
    name      = one([for r in kubernetes_role_v1.r : r.metadata[0].name if endswith(r.metadata[0].name, "1")])
  }
  subject {
    kind = "ServiceAccount"
    name = try(var.tenants["none"].x, element(kubernetes_role_v1.r[*].metadata.0.name, 2))
  }
}
