package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// dials are the files that open connections by themselves, or listen, and to whom. All else goes through client-go, to
// the API server of the kubeconfig.
var dials = map[string]string{
	"debugpod/rpc/rpc.go":                            "the node's container runtime, kubelet and plugins, over Unix sockets",
	"debugpod/rpc/serve.go":                          "the node's kubelet, over a Unix socket",
	"debugpod/node/device/plugins.go":                "the node's device plugins, over their Unix sockets: whether they listen",
	"debugpod/node/firewall/probe_linux.go":          "the peers of a partition: a packet from a pod, to verify that it is dropped",
	"debugpod/node/containerruntime/system_linux.go": "the node's container runtime, over its Unix socket: which process listens",
	"debugpod/node/diagnose/system_linux.go":         "Unix sockets of the node: whether a process listens",
	"debugpod/image/push.go":                         "the registry that `image push` was given",
	"debugpod/execer.go":                             "the API server: exec into a pod",
	"pkg/scenario/check/service.go":                  "the API server: its proxy to a Service",
	"pkg/scenario/exercise/clock.go":                 "the API server: its clock",
	"pkg/sandbox/egress.go":                          "hosts that --agent-host names, for an agent in its sandbox",
	"pkg/sandbox/first_linux.go":                     "nobody: it listens on the sandbox's own loopback interface",
	"pkg/scenario/recorder/recorder.go":              "the API server, for a client on this machine's loopback interface",
	"pkg/collect/images.go":                          "registries, about images that pods cannot start; doctor --no-images leaves it out",
	"plugin/cuda/preloads.go":                        "registries, for the LD_PRELOAD that an image of the user's workload sets",
	"plugin/otlp/send.go":                            "the collector that OTEL_EXPORTER_OTLP_ENDPOINT names; nobody without it",
}

// opens are what opens a connection, or listens, by the packages' paths.
var opens = map[string][]string{
	"net": {
		"Dial", "DialIP", "DialTCP", "DialTimeout", "DialUDP", "DialUnix", "Dialer", "Listen", "ListenConfig",
		"ListenPacket", "ListenTCP", "ListenUDP", "ListenUnix",
	},
	"net/http": {
		"Client", "DefaultClient", "DefaultTransport", "Get", "Head", "ListenAndServe", "ListenAndServeTLS",
		"NewRequest", "NewRequestWithContext", "Post", "PostForm",
		"Serve", "Server", "Transport",
	},
	"golang.org/x/sys/unix": {"Connect", "Sendto"},
	"crypto/tls":            {"Dial", "DialWithDialer", "Dialer", "Listen"},
	"k8s.io/client-go/rest": {
		"HTTPClientFor", "TransportFor", "UnversionedRESTClientFor",
	},
	"k8s.io/client-go/transport":           {"New"},
	"k8s.io/client-go/tools/remotecommand": {"NewSPDYExecutor", "NewWebSocketExecutor"},
	"k8s.io/client-go/tools/portforward":   {"New"},
	"github.com/google/go-containerregistry/pkg/v1/remote": {
		"Get", "Head", "Image", "Index", "List", "Write", "WriteIndex", "WriteLayer", "MultiWrite", "Push", "Put",
		"Tag",
	},
}

// never are packages that talk to the network in ways that nobody here looks at.
var never = []string{
	"net/rpc", "net/smtp", "net/http/cgi", "google.golang.org/grpc", "github.com/google/go-containerregistry/pkg/crane",
}

// TestNobodyCallsHome holds that only known files open connections: the program talks to the API server, to registries
// when it is asked to, and to nobody else; the helper to nobody over the network, except to verify a partition.
func TestNobodyCallsHome(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, p := range packages(t) {
		rel := strings.TrimPrefix(p.ImportPath, module+"/")
		if below(rel, "hack") || below(rel, "test") {
			continue
		}
		for _, name := range p.GoFiles {
			file := rel + "/" + name
			set := token.NewFileSet()
			tree, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			names := map[string]string{} // of imported packages, in this file
			for _, i := range tree.Imports {
				path := strings.Trim(i.Path.Value, `"`)
				if slices.ContainsFunc(never, func(bad string) bool { return below(path, bad) }) {
					t.Errorf("%s imports %s, which talks to the network", file, path)
				}
				local := filepath.Base(path)
				if i.Name != nil {
					local = i.Name.Name
				}
				if local == "." && opens[path] != nil {
					t.Errorf("%s: import %s by its name, so that it can be seen who opens connections", file, path)
				}
				names[local] = path
			}
			ast.Inspect(tree, func(n ast.Node) bool {
				selector, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if x, ok := selector.X.(*ast.Ident); ok && x.Obj == nil &&
					slices.Contains(opens[names[x.Name]], selector.Sel.Name) {
					seen[file] = true
					if dials[file] == "" {
						t.Errorf("%s: %s.%s opens a connection: to whom? see dials", set.Position(n.Pos()), x.Name,
							selector.Sel.Name)
					}
				}
				return true
			})
		}
	}
	for file := range dials {
		if !seen[file] {
			t.Errorf("%s opens no connection any more: take it out of dials", file)
		}
	}
}
