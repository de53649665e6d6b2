tenants = {
  a = { ports = [1, 2, 3] }
  b = {}
  c = { ports = [9] }
}
