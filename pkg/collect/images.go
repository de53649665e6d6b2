package collect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// Limits for queries to registries.
const (
	mostImages    = 40
	imageParallel = 4
	imageTimeout  = 15 * time.Second
)

// images queries registries for the platforms of the images of GPU pods that are failing or waiting.
func (c *collector) images(ctx context.Context) {
	if c.options.NoImages {
		return
	}
	keys := keychain{}
	var refs []string
	seen := map[[2]string]bool{}
	for i := range c.s.Pods {
		pod := &c.s.Pods[i]
		if isWell(pod) || pod.Status.Phase == corev1.PodRunning && started(pod) ||
			!facts.WantsGPU(pod) && facts.ComponentOf(pod.Labels, &pod.Spec) == "" {
			continue
		}
		for _, all := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for _, container := range all {
				if !slices.Contains(refs, container.Image) && len(refs) < mostImages {
					refs = append(refs, container.Image)
				}
			}
		}
		for _, secret := range pod.Spec.ImagePullSecrets {
			if key := [2]string{pod.Namespace, secret.Name}; !seen[key] {
				seen[key] = true
				keys.add(c.pullSecret(ctx, pod.Namespace, secret.Name))
			}
		}
	}
	if len(refs) == 0 {
		return
	}
	c.progress("querying registries for " + count.Of(len(refs), "image"))
	c.s.Images = Images(ctx, refs, keys, c.options.Registries)
}

// started reports whether every container has run before. If so, the containers' images are available and were built
// for the right platform.
func started(pod *corev1.Pod) bool {
	return !slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Waiting != nil && s.LastTerminationState.Terminated == nil || s.RestartCount > 0
	})
}

// pullSecret returns the registry credentials in a Secret. It returns nil if the Secret cannot be read, which is
// normal; the registry then decides whether to allow access.
func (c *collector) pullSecret(ctx context.Context, namespace, secretName string) []byte {
	ctx, cancel := context.WithTimeout(ctx, imageTimeout)
	defer cancel()
	secret, err := c.Client.CoreV1().Secrets(namespace).Get(ctx, secretName, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return secret.Data[corev1.DockerConfigJsonKey]
}

// Images queries registries for the platforms of images. Errors are in the results. If through is nil, the
// default transport is used.
func Images(
	ctx context.Context, refs []string, keys authn.Keychain, through http.RoundTripper,
) map[string]snapshot.Image {
	if through == nil {
		through = remote.DefaultTransport
	}
	answers := map[string]snapshot.Image{}
	var mu sync.Mutex
	group := errgroup.Group{}
	group.SetLimit(imageParallel)
	for _, ref := range refs {
		group.Go(func() error {
			platforms, err := platforms(ctx, ref, keys, through)
			answer := snapshot.Image{Platforms: platforms}
			if err != nil {
				answer = snapshot.Image{Error: explainRegistry(err)}
			}
			mu.Lock()
			defer mu.Unlock()
			answers[ref] = answer
			return nil
		})
	}
	_ = group.Wait() // errors are in the results
	return answers
}

func platforms(ctx context.Context, raw string, keys authn.Keychain, through http.RoundTripper) ([]string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, imageTimeout,
		fmt.Errorf("the registry did not respond within %s", imageTimeout))
	defer cancel()
	ref, err := name.ParseReference(raw)
	if err != nil {
		return nil, err
	}
	image, err := remote.Get(ref, remote.WithContext(ctx), remote.WithAuthFromKeychain(keys),
		remote.WithTransport(through), remote.WithRetryBackoff(remote.Backoff{Steps: 1}))
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, err
	}
	if !image.MediaType.IsIndex() {
		single, err := image.Image()
		if err != nil {
			return nil, err
		}
		config, err := single.ConfigFile()
		if err != nil {
			return nil, err
		}
		return []string{platformOf(*config.Platform())}, nil
	}
	index, err := image.ImageIndex()
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for _, m := range manifest.Manifests {
		if m.Platform != nil && m.Platform.OS != "unknown" { // attestations have an unknown OS
			found[platformOf(*m.Platform)] = true
		}
	}
	if len(found) == 0 {
		return nil, errors.New("the index does not list platforms")
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// platformOf formats a platform such as linux/arm64/v8, without the Windows version.
func platformOf(p v1.Platform) string {
	text := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		text += "/" + p.Variant
	}
	return text
}

// explainRegistry describes why the platforms are unknown. It quotes errors from the registry.
func explainRegistry(err error) string {
	var answer *transport.Error
	if errors.As(err, &answer) {
		switch answer.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden:
			return fmt.Sprintf("the registry denied access: %v", err)
		case http.StatusNotFound:
			return fmt.Sprintf("not found in the registry: %v", err)
		}
		return fmt.Sprintf("the registry returned an error: %v", err)
	}
	return fmt.Sprintf("the registry is unreachable from here: %v", err)
}

// keychain contains credentials by registry or by repository prefix.
type keychain map[string]authn.AuthConfig

// add adds the credentials in a .dockerconfigjson. It ignores invalid ones.
func (k keychain) add(raw []byte) {
	var config struct {
		Auths map[string]authn.AuthConfig `json:"auths"`
	}
	if json.Unmarshal(raw, &config) != nil {
		return
	}
	for registry, auth := range config.Auths {
		k[registryName(registry)] = auth
	}
}

// registryName normalizes keys in Docker's configuration, such as "https://index.docker.io/v1/" and "nvcr.io/nvidia".
func registryName(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	key = strings.TrimSuffix(key, "/")
	for _, version := range []string{"/v1", "/v2"} {
		key = strings.TrimSuffix(key, version)
	}
	if key == "docker.io" || key == "registry-1.docker.io" {
		return name.DefaultRegistry
	}
	return key
}

// Resolve implements authn.Keychain. It matches credentials in the same way as the kubelet: the longest matching key
// wins, and a label in a host name may be "*".
func (k keychain) Resolve(resource authn.Resource) (authn.Authenticator, error) {
	best := ""
	for key := range k {
		if len(key) > len(best) && covers(key, resource) {
			best = key
		}
	}
	if best == "" {
		return authn.Anonymous, nil
	}
	return authn.FromConfig(k[best]), nil
}

func covers(key string, resource authn.Resource) bool {
	host, below, _ := strings.Cut(key, "/")
	_, repository, _ := strings.Cut(resource.String(), "/")
	if below != "" && repository != below && !strings.HasPrefix(repository, below+"/") {
		return false
	}
	if host == resource.RegistryStr() {
		return true
	}
	// An asterisk matches one label.
	matched, err := path.Match(strings.ReplaceAll(host, ".", "/"), strings.ReplaceAll(resource.RegistryStr(), ".", "/"))
	return err == nil && matched
}
