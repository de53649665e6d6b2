package exercise

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// leaks reads everything that the candidate can list, including managed fields, and the nodes on which the candidate
// can become root. It returns the locations that reveal the answer or, on the API server, this tool.
func (c *candidate) leaks(ctx context.Context) ([]string, error) {
	lists, err := c.client.Discovery().ServerPreferredResources()
	if err != nil && len(lists) == 0 {
		return nil, fmt.Errorf("search what the candidate can read: %w", err)
	}
	namespaces := slices.Concat(c.r.Public.Access.Namespaces, c.r.Public.Access.Read, c.r.Public.Access.Shared(),
		[]string{metav1.NamespaceDefault, c.lab.LedgerNamespace, c.e.Account.Namespace})
	var found []string
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for _, kind := range list.APIResources {
			if !slices.Contains(kind.Verbs, "list") {
				continue
			}
			in := []string{""}
			if kind.Namespaced {
				in = namespaces
			}
			for _, namespace := range in {
				more, err := c.leaksOf(ctx, gv.WithResource(kind.Name), namespace)
				if err != nil {
					return nil, err
				}
				found = append(found, more...)
			}
		}
	}
	if c.r.Public.Access.NodeShell {
		for _, node := range c.e.Nodes {
			more, err := c.leaksOn(ctx, node)
			if err != nil {
				return nil, err
			}
			found = append(found, more...)
		}
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

// searchNode prints recently written files on a node that contain one of the WORDS, and readable files of this tool.
// The words are encoded, because the script itself is also on the node.
const searchNode = `words=$(printf %s WORDS | base64 -d)
find /etc /opt /tmp /var/tmp /var/log /var/lib/kubelet DIR -type f -mmin -60 -size -8192k -print0 2>/dev/null |
  LC_ALL=C xargs -0 grep -liF -e "$words" 2>/dev/null | sed 's/$/ contains the answer/'
find DIR -type f ! -name '*-room' 2>/dev/null | while read -r f; do
  case $(head -c 64 "$f" | head -n 1) in
  'MARK') ;;
  *) echo "$f is not encrypted" ;;
  esac
done
true`

// leaksOn searches a node as root, like a candidate who can create privileged pods.
func (c *candidate) leaksOn(ctx context.Context, node string) ([]string, error) {
	words := slices.DeleteFunc(c.sealedWords(), func(word string) bool { return word == c.e.ID }) // in pod names
	for i := range words {
		words[i] = strings.Join(strings.Fields(words[i]), " ") // each line is a pattern
	}
	script := strings.NewReplacer(
		"WORDS", base64.StdEncoding.EncodeToString([]byte(strings.Join(words, "\n"))),
		"DIR", deadman.Dir, "MARK", deadman.EncryptedMark,
	).Replace(searchNode)
	said, ok, err := c.onNode(ctx, scenario.NodeShell{Node: node, Script: script})
	if err == nil && !ok {
		err = errors.New(said)
	}
	if err != nil {
		return nil, fmt.Errorf("search node %s as the candidate: %w", node, err)
	}
	var found []string
	for line := range strings.Lines(said) {
		found = append(found, fmt.Sprintf("node %s: %s", node, strings.TrimSpace(line)))
	}
	return found, nil
}

func (c *candidate) leaksOf(
	ctx context.Context, resource schema.GroupVersionResource, namespace string,
) ([]string, error) {
	list, err := c.dynamic.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list %s as the candidate: %w", resource.Resource, err)
	}
	if namespace == c.lab.LedgerNamespace && len(list.Items) > 0 {
		return []string{fmt.Sprintf("%s from the ledger in namespace %s", resource.Resource, namespace)}, nil
	}
	var found []string
	for i := range list.Items {
		if word := c.telling(&list.Items[i]); word != "" {
			found = append(found, fmt.Sprintf("%s %s/%s contains %q", list.Items[i].GetKind(),
				list.Items[i].GetNamespace(),
				list.Items[i].GetName(), word))
		}
	}
	return found, nil
}

// telling returns a word in an object that reveals the answer or this tool, or "".
func (c *candidate) telling(object *unstructured.Unstructured) string {
	// The status of nodes lists images that other workloads used.
	unstructured.RemoveNestedField(object.Object, "status", "images")
	body, err := json.Marshal(object.Object)
	if err != nil {
		return ""
	}
	text := strings.ToLower(string(body))
	words := c.sealedWords()
	if ref := refOf(object); c.e.has(ref) && !isNamespace(ref) || within(ref, c.e.Namespaces) {
		words = append(words, "gpu-fault", "gpufault", "gpu_fault", strings.ToLower(c.e.Scenario))
	}
	for _, word := range words {
		if strings.Contains(text, word) {
			return word
		}
	}
	return ""
}

// sealedWords returns words from the sealed half that would not occur elsewhere by chance.
func (c *candidate) sealedWords() []string {
	sealed := c.r.Sealed
	words := []string{c.e.ID, sealed.RootCause.Mechanism.Value}
	for _, hint := range sealed.Hints {
		words = append(words, hint.Text)
	}
	for _, attempt := range slices.Concat(sealed.Solutions, sealed.WrongFixes) {
		words = append(words, attempt.Name, attempt.Why)
	}
	for _, check := range sealed.Broken {
		words = append(words, check.Name)
	}
	words = append(words, strings.Split(sealed.Story, ". ")...)
	for i := range words {
		words[i] = strings.ToLower(strings.TrimSpace(words[i]))
	}
	const short = 12 // shorter words may be part of any name: image, limits
	return slices.DeleteFunc(words,
		func(word string) bool { return len(word) < short || !strings.ContainsAny(word, "- ") })
}
