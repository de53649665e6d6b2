package recorder

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

const (
	// longestBody is the maximum size of a manifest from which the name is read.
	longestBody = 1 << 20
	// longestText is the maximum length of a recorded selector, path or word in a command, and mostWords the maximum
	// number of words.
	longestText = 500
	mostWords   = 20
)

// lineOf returns the attributes of a request, as the API server determines them.
// https://kubernetes.io/docs/reference/access-authn-authz/authorization/#request-attributes
func lineOf(r *http.Request) Line {
	query := r.URL.Query()
	line := resourceOf(r.URL.Path)
	line.Labels, line.Fields = cut(query.Get("labelSelector")), cut(query.Get("fieldSelector"))
	line.Container, line.DryRun = cut(query.Get("container")), slices.Contains(query["dryRun"], "All")
	line.As = cut(r.Header.Get("Impersonate-User"))
	line.Table = strings.Contains(r.Header.Get("Accept"), "as=Table")
	if line.Subresource == "exec" {
		words := snapshot.RedactCommand(query["command"])
		for _, word := range words[:min(mostWords, len(words))] {
			line.Command = append(line.Command, cut(word))
		}
	}
	if line.Verb == "" {
		line.Verb = verbOf(r.Method, line, query)
	}
	if r.Method == http.MethodPost && line.Resource != "" && line.Name == "" {
		line.Name = cut(nameIn(r))
	}
	return line
}

// resourceOf parses a path.
func resourceOf(path string) Line {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	var line Line
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		line.Group, parts = cut(parts[1]), parts[3:]
	default:
		return Line{Path: cut(path)}
	}
	if parts[0] == "watch" && len(parts) > 1 { // used by old clients
		line.Verb, parts = "watch", parts[1:]
	}
	if parts[0] == "namespaces" && len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
		line.Namespace, parts = cut(parts[1]), parts[2:]
	}
	parts = append(parts, "", "")
	line.Resource, line.Name, line.Subresource = cut(parts[0]), cut(parts[1]), cut(parts[2])
	return line
}

func verbOf(method string, line Line, query url.Values) string {
	switch watch := query.Get("watch"); {
	case line.Resource == "":
		return strings.ToLower(cut(method))
	case method == http.MethodPost:
		return "create"
	case method == http.MethodPut:
		return "update"
	case method == http.MethodDelete && line.Name == "":
		return "deletecollection"
	case method != http.MethodGet && method != http.MethodHead:
		return strings.ToLower(cut(method))
	case watch == "true" || watch == "1":
		return "watch"
	case line.Name == "":
		return "list"
	}
	return "get"
}

// nameIn returns the name of the object to create, which is only in the manifest. It reads nothing else from the
// manifest.
func nameIn(r *http.Request) string {
	if r.Body == nil || r.ContentLength <= 0 || r.ContentLength > longestBody {
		return ""
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, longestBody))
	rest := r.Body
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), rest), rest}
	if err != nil {
		return ""
	}
	var name, prefix string
	if manifest, is := bytes.CutPrefix(body, []byte("k8s\x00")); is {
		name, prefix = nameInProtobuf(manifest)
	} else {
		name, prefix = nameInJSON(body)
	}
	if name == "" && prefix != "" {
		return prefix + "*"
	}
	return name
}

func nameInJSON(body []byte) (name, prefix string) {
	var manifest struct {
		Metadata struct {
			Name         string `json:"name"`
			GenerateName string `json:"generateName"`
		} `json:"metadata"`
	}
	if json.Unmarshal(body, &manifest) != nil {
		return "", ""
	}
	return manifest.Metadata.Name, manifest.Metadata.GenerateName
}

// nameInProtobuf returns the name and the name prefix. The object is field 2 of the envelope, its metadata is
// field 1 of the object, and the names are fields 1 and 2 of the metadata.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding
func nameInProtobuf(envelope []byte) (name, prefix string) {
	metadata := field(field(envelope, 2), 1)
	return string(field(metadata, 1)), string(field(metadata, 2))
}

// field returns the first length-delimited field with the given number in a message.
func field(message []byte, number protowire.Number) []byte {
	for len(message) > 0 {
		found, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil
		}
		message = message[n:]
		if found == number && kind == protowire.BytesType {
			value, n := protowire.ConsumeBytes(message)
			if n < 0 {
				return nil
			}
			return value
		}
		if n = protowire.ConsumeFieldValue(found, kind, message); n < 0 {
			return nil
		}
		message = message[n:]
	}
	return nil
}

func cut(text string) string {
	if len(text) > longestText {
		return strings.ToValidUTF8(text[:longestText], "") + "..."
	}
	return text
}
