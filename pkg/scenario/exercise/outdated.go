package exercise

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// outdated adds pods whose environment or files come from a ConfigMap or Secret that was deleted, and pods whose
// environment comes from a ConfigMap or Secret whose data was changed after the pods' containers started. New pods
// would get different values from the pods that work. The optional sources of the original workloads may never have
// existed.
func (g *grading) outdated(
	ctx context.Context, onNode map[string][]corev1.Pod, original map[scenario.Ref]bool,
) error {
	settings := map[scenario.Ref]written{}
	for _, pods := range onNode {
		for _, pod := range pods {
			for _, from := range sources(pod) {
				is, known := settings[from.ref]
				if !known {
					var err error
					if is, err = g.lab.written(ctx, from.ref); apierrors.IsForbidden(err) {
						g.report.NotCompared = append(g.report.NotCompared, err.Error())
					} else if err != nil {
						return err
					}
					settings[from.ref] = is
				}
				what := fmt.Sprintf("its environment comes from %s %s, ", from.ref.Kind, from.ref.Name)
				if from.volume {
					what = fmt.Sprintf("its files come from %s %s, ", from.ref.Kind, from.ref.Name)
				}
				switch {
				case is.unknown, is.deleted && from.optional && original[from.ref]:
				case is.deleted:
					g.spoil(pod, what+"which does not exist")
				case from.volume: // programs may read changed files again
				case from.key != "" && !from.optional && !slices.Contains(is.keys, from.key):
					g.spoil(pod, what+"which no longer has the key "+strconv.Quote(from.key))
				case is.after(pod, from.container), g.lab.wroteMeanwhile(ctx, is, pod, from.container):
					g.spoil(pod, what+"whose data was changed after the pod started; replace the pod, and grade again")
				}
			}
		}
	}
	return nil
}

// source is a ConfigMap or Secret that provides environment variables for a container, or files for the pod.
type source struct {
	ref       scenario.Ref
	container string
	key       string // the key of one variable; empty means all keys
	optional  bool
	volume    bool
}

// optionalAtBegin returns the optional sources of the workloads at handover.
func (g *grading) optionalAtBegin() map[scenario.Ref]bool {
	found := map[scenario.Ref]bool{}
	if g.begin == nil {
		return found
	}
	for _, namespace := range g.e.Namespaces {
		for _, kind := range workloads {
			version := "apps/v1"
			if kind == "Job" {
				version = "batch/v1"
			}
			all := scenario.Selector{APIVersion: version, Kind: kind, Namespace: namespace}
			for _, workload := range g.begin.List(all) {
				object, _ := workload.(map[string]any)
				spec := podSpec(object)
				if spec == nil {
					continue
				}
				pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, Spec: *spec}
				for _, from := range sources(pod) {
					found[from.ref] = found[from.ref] || from.optional
				}
			}
		}
	}
	return found
}

// sources returns the sources of environment variables for a pod's containers. It considers only the containers that
// run as long as the pod does, including sidecars among the init containers.
func sources(pod corev1.Pod) []source {
	var found []source
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		add := func(kind, name, key string, optional *bool) {
			found = append(found, source{
				ref:       scenario.Ref{APIVersion: "v1", Kind: kind, Namespace: pod.Namespace, Name: name},
				container: container.Name, key: key, optional: optional != nil && *optional,
			})
		}
		for _, from := range container.EnvFrom {
			if from.ConfigMapRef != nil {
				add(kindConfigMap, from.ConfigMapRef.Name, "", from.ConfigMapRef.Optional)
			}
			if from.SecretRef != nil {
				add(kindSecret, from.SecretRef.Name, "", from.SecretRef.Optional)
			}
		}
		for _, env := range container.Env {
			switch {
			case env.ValueFrom == nil:
			case env.ValueFrom.ConfigMapKeyRef != nil:
				key := env.ValueFrom.ConfigMapKeyRef
				add(kindConfigMap, key.Name, key.Key, key.Optional)
			case env.ValueFrom.SecretKeyRef != nil:
				key := env.ValueFrom.SecretKeyRef
				add(kindSecret, key.Name, key.Key, key.Optional)
			}
		}
	}
	return append(found, volumeSources(pod)...)
}

// volumeSources returns the ConfigMaps and Secrets in a pod's volumes.
func volumeSources(pod corev1.Pod) []source {
	var found []source
	add := func(kind, name string, optional *bool) {
		found = append(found, source{
			ref:      scenario.Ref{APIVersion: "v1", Kind: kind, Namespace: pod.Namespace, Name: name},
			optional: optional != nil && *optional, volume: true,
		})
	}
	for _, volume := range pod.Spec.Volumes {
		switch {
		case volume.ConfigMap != nil:
			add(kindConfigMap, volume.ConfigMap.Name, volume.ConfigMap.Optional)
		case volume.Secret != nil:
			add(kindSecret, volume.Secret.SecretName, volume.Secret.Optional)
		case volume.Projected != nil:
			for _, part := range volume.Projected.Sources {
				if part.ConfigMap != nil {
					add(kindConfigMap, part.ConfigMap.Name, part.ConfigMap.Optional)
				}
				if part.Secret != nil {
					add(kindSecret, part.Secret.Name, part.Secret.Optional)
				}
			}
		}
	}
	return found
}

// written contains the times at which the data of a ConfigMap or Secret was last written, as far as its managed fields
// show.
type written struct {
	data    time.Time // by writers that own data
	any     time.Time // by all writers
	version uint64    // orders writes within a second
	keys    []string
	deleted bool
	unknown bool
}

// readAt returns the time by which a container in a pod had read its environment, which happens when the container is
// created. ok is false if the container has terminated.
func readAt(pod corev1.Pod, container string) (read time.Time, ok bool) {
	// The container's start time is from the node's clock, and the pod's creation time is from the API server's.
	read = pod.CreationTimestamp.Time
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if s.Name != container {
			continue
		}
		if s.State.Running == nil {
			return read, false
		}
		if s.State.Running.StartedAt.After(read) {
			read = s.State.Running.StartedAt.Time
		}
	}
	return read, true
}

// after reports whether the data was written after a container in a pod had read it.
func (w written) after(pod corev1.Pod, container string) bool {
	read, ok := readAt(pod, container)
	if !ok {
		return false
	}
	version, err := strconv.ParseUint(pod.ResourceVersion, 10, 64) // of the pod's last status, when it was ready
	later := err == nil && w.version > version
	switch {
	case w.data.After(read):
		return true
	case w.data.IsZero() && len(w.keys) > 0:
		return later // the managed fields were removed, so that they do not show who wrote the data
	case w.data.Equal(read):
		return later
	}
	return later && w.any.Before(read) // a client that removes a key owned by other managers leaves no timestamp
}

// wroteMeanwhile reports whether the data was written between the creation of a pod and the start of a container. The
// container read the data at some time in between. Times have a resolution of one second, so the API server is asked
// whether the pod already existed when the data was written. The API server stores old revisions for five minutes.
func (l *Lab) wroteMeanwhile(ctx context.Context, w written, pod corev1.Pod, container string) bool {
	read, ok := readAt(pod, container)
	if !ok || w.data.Before(pod.CreationTimestamp.Time) || w.data.Before(read.Add(-2*time.Second)) {
		return false
	}
	then, err := l.Client.CoreV1().Pods(pod.Namespace).List(ctx, metav1.ListOptions{
		ResourceVersion:      strconv.FormatUint(w.version, 10),
		ResourceVersionMatch: metav1.ResourceVersionMatchExact,
		FieldSelector:        fields.OneTermEqualSelector(metav1.ObjectNameField, pod.Name).String(),
	})
	return err == nil && slices.ContainsFunc(then.Items, func(p corev1.Pod) bool { return p.UID == pod.UID })
}

// written returns the times at which a ConfigMap or Secret was last written.
func (l *Lab) written(ctx context.Context, ref scenario.Ref) (written, error) {
	var found metav1.Object
	var is written
	var err error
	if ref.Kind == kindSecret {
		var secret *corev1.Secret
		secret, err = l.Client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if found = secret; err == nil {
			for key := range secret.Data {
				is.keys = append(is.keys, key)
			}
		}
	} else {
		var settings *corev1.ConfigMap
		settings, err = l.Client.CoreV1().ConfigMaps(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if found = settings; err == nil {
			for key := range settings.Data {
				is.keys = append(is.keys, key)
			}
		}
	}
	switch {
	case apierrors.IsNotFound(err):
		return written{deleted: true}, nil
	case err != nil:
		return written{unknown: true}, fmt.Errorf("get %s %s/%s: %w", ref.Kind, ref.Namespace, ref.Name, err)
	}
	is.data, is.any = found.GetCreationTimestamp().Time, found.GetCreationTimestamp().Time
	is.version, _ = strconv.ParseUint(found.GetResourceVersion(), 10, 64)
	for _, entry := range found.GetManagedFields() {
		if entry.Time == nil {
			continue
		}
		if entry.Time.After(is.any) {
			is.any = entry.Time.Time
		}
		ofData := entry.FieldsV1 != nil && strings.Contains(entry.FieldsV1.GetRawString(), `"f:data"`)
		if ofData && entry.Time.After(is.data) {
			is.data = entry.Time.Time
		}
	}
	return is, nil
}
