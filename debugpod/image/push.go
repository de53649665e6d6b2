package image

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// Push pushes the image for all platforms to a registry with the given tag. keys contains the user's credentials, such
// as authn.DefaultKeychain.
func (i *Image) Push(ctx context.Context, tag name.Tag, keys authn.Keychain) error {
	err := remote.WriteIndex(tag, i.Index,
		remote.WithContext(ctx), remote.WithAuthFromKeychain(keys), remote.WithUserAgent("kubectl-gpu-fault"))
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("push %s: %w", tag.Name(), context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("push %s: %w%s", tag.Name(), err, hint(err, tag))
	}
	return nil
}

// hint returns advice for the user if a registry rejects the image.
func hint(err error, tag name.Tag) string {
	host := tag.RegistryStr()
	var answer *transport.Error
	if errors.As(err, &answer) {
		switch answer.StatusCode {
		case http.StatusUnauthorized:
			return fmt.Sprintf("; log in to the registry: docker login %s (or podman, oras or crane login)", host)
		case http.StatusForbidden:
			return fmt.Sprintf("; your account at %s is not allowed to push to %s: request permission, or choose another repository",
				host, tag.RepositoryStr())
		case http.StatusNotFound, http.StatusMethodNotAllowed:
			return fmt.Sprintf("; registry %s or repository %s does not exist: some registries require you to create "+
				"the repository first",
				host, tag.RepositoryStr())
		case http.StatusTooManyRequests:
			return "; try again later"
		}
		return ""
	}
	switch text := err.Error(); {
	case strings.Contains(text, "server gave HTTP response to HTTPS client"):
		return "; the registry supports only HTTP: to allow this, pass --insecure"
	case strings.Contains(text, "x509:"):
		return fmt.Sprintf("; this machine does not trust the certificate of %s: add its certificate authority to "+
			"the system's trust store",
			host)
	case strings.Contains(text, "no such host"), strings.Contains(text, "connection refused"),
		strings.Contains(text, "i/o timeout"):
		return fmt.Sprintf("; check that %s is the registry's name and port, and that it is reachable", host)
	}
	return ""
}

// ParseTag parses REPOSITORY[:TAG]. The tag defaults to the image's own. insecure allows a registry that uses HTTP.
func (i *Image) ParseTag(text string, insecure bool) (name.Tag, error) {
	if strings.Contains(text, "@") {
		return name.Tag{}, fmt.Errorf("invalid image name %q: must not have a digest, because the digest is computed from the image's content", text)
	}
	if strings.Contains(text, "://") {
		return name.Tag{},
			fmt.Errorf("invalid image name %q: must not have a scheme; omit everything up to //", text)
	}
	options := []name.Option{name.WithDefaultTag(i.Tag)}
	if insecure {
		options = append(options, name.Insecure)
	}
	tag, err := name.NewTag(text, options...)
	if err != nil {
		return name.Tag{},
			fmt.Errorf("invalid image name %q: must be a name such as registry.example.com/tools/gpu-fault-node: %w", text, err)
	}
	return tag, nil
}
