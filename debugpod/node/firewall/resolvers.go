package firewall

import (
	"net/netip"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// mostResolvers is the maximum number of DNS servers that resolvers use (resolv.conf(5)).
const mostResolvers = 3

// parseResolvers returns the DNS servers in a resolv.conf, which belongs to a container and may contain anything. It
// omits the pod's own addresses, because packets to them are not forwarded.
func parseResolvers(text string) (all []netip.Addr) {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "nameserver" || len(all) == mostResolvers {
			continue
		}
		address, err := netip.ParseAddr(words[1])
		if err == nil && api.IsHostAddress(address) {
			all = append(all, address)
		}
	}
	return all
}
