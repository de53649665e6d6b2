package cuda

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sync/errgroup"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
)

// registryTimeout limits reading all images. It is short because the result is optional, and many clusters' registries
// are not reachable from a laptop.
const registryTimeout = 5 * time.Second

// readEnvironment returns the environment variables that an image sets, each in the form NAME=VALUE.
type readEnvironment func(ctx context.Context, image string) ([]string, error)

// preloads returns the LD_PRELOAD values set by images, by image. The shim's value replaces the image's value and must
// therefore include it. unread lists the images that could not be read, with the reasons.
func preloads(
	ctx context.Context, chosen []cudashim.Chosen, read readEnvironment,
) (found map[string]string, unread []string) {
	ctx, cancel := context.WithTimeout(ctx, registryTimeout)
	defer cancel()
	found = map[string]string{}
	var (
		mu    sync.Mutex
		group errgroup.Group
	)
	all := images(chosen)
	whys := make([]string, len(all))
	for i, image := range all {
		group.Go(func() error {
			variables, err := read(ctx, image)
			if err != nil {
				whys[i] = fmt.Sprintf("%s (%s)", image, brief(err))
				return nil
			}
			for _, variable := range variables {
				if value, ok := strings.CutPrefix(variable, cudashim.PreloadVar+"="); ok && value != "" {
					mu.Lock()
					found[image] = value
					mu.Unlock()
				}
			}
			return nil
		})
	}
	_ = group.Wait() // errors are in whys
	for _, why := range whys {
		if why != "" {
			unread = append(unread, why)
		}
	}
	return found, unread
}

// readImage returns the environment variables in an image's configuration from its registry, using the credentials of
// docker login, if any. For a multi-platform image, it reads linux/amd64 and assumes that the other platforms have the
// same variables.
func readImage(ctx context.Context, image string) ([]string, error) {
	reference, err := name.ParseReference(image)
	if err != nil {
		return nil, err
	}
	found, err := remote.Image(reference, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	if err != nil {
		return nil, err
	}
	config, err := found.ConfigFile()
	if err != nil {
		return nil, err
	}
	return config.Config.Env, nil
}

// brief returns the essential part of an error from a registry.
func brief(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "the registry does not respond"
	}
	text, _, _ := strings.Cut(err.Error(), "\n")
	if i := strings.LastIndex(text, ": "); i >= 0 && len(text) > 80 {
		text = text[i+2:]
	}
	return text
}
