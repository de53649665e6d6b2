package image

import (
	"fmt"
	"regexp"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const tagPrefix = "gpu-fault-"

func tagOf(digest v1.Hash) string { return tagPrefix + digest.Hex[:12] }

// ownTagForm matches a tag in the form that tagOf returns.
const ownTagForm = tagPrefix + `[0-9a-f]{12}`

// ownTag matches a tag of that form at the end of a reference or before its digest, including the tag of an image with
// the plugin.
var ownTag = regexp.MustCompile(`:(` + ownTagForm + `)(?:-(?:amd64|arm64)-[0-9a-f]{12})?(?:@|$)`)

// OtherError means that an image was built by another build of the client, and therefore contains a different helper.
type OtherError struct{ Image, Has, Wanted string }

func (e *OtherError) Error() string {
	return fmt.Sprintf("image %s contains the node helper from another build of kubectl gpu-fault (%s, but this "+
		"build requires %s): build a new image with kubectl gpu-fault image push or save", e.Image, e.Has, e.Wanted)
}

// HasHelper reports whether a reference refers to the image of this build. It compares the digest, or the tag if the
// reference has no digest or the image also contains the plugin. It returns an *OtherError if the image was built by
// another build. It calls own only if the reference may match, because building the image is slow.
func HasHelper(reference string, own func() (*Image, error)) (bool, error) {
	tag := ""
	if found := ownTag.FindStringSubmatch(reference); found != nil {
		tag = found[1]
	}
	_, digest, pinned := strings.Cut(reference, "@")
	if tag == "" && !pinned {
		return false, nil
	}
	ours, err := own()
	switch {
	case err != nil:
		return false, err
	case pinned && digest == ours.Digest.String(), tag == ours.Tag && (!pinned || PluginIn(reference) != ""):
		return true, nil
	case tag != "":
		return false, &OtherError{Image: reference, Has: tag, Wanted: ours.Tag}
	}
	return false, nil // a different image, pinned by digest
}
