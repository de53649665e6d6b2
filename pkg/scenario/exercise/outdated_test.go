package exercise

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// A pod that works with settings that are no longer there is not repaired: the next one does not work.
func TestOutdatedEnvironments(t *testing.T) {
	t.Parallel()
	created := time.Now().Add(-time.Hour).Truncate(time.Second)
	versioned := func(c *corev1.ConfigMap, version string) *corev1.ConfigMap {
		c.ResourceVersion = version
		return c
	}
	settings := func(changed time.Duration) *corev1.ConfigMap {
		written := metav1.NewTime(created.Add(changed))
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: "settings", Namespace: "team", ResourceVersion: "8",
			CreationTimestamp: metav1.NewTime(created.Add(-time.Hour)),
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: "kubectl", Time: &written, FieldsV1: metav1.NewFieldsV1(`{"f:data":{"f:A":{}}}`),
			}},
		}, Data: map[string]string{"A": "1"}}
	}
	from := func(optional *bool) corev1.Container {
		return corev1.Container{Name: "main", EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, Optional: optional,
		}}}}
	}
	// note is a write that does not concern the data.
	note := func(c *corev1.ConfigMap) *corev1.ConfigMap {
		at := metav1.NewTime(created.Add(5 * time.Minute))
		c.ManagedFields = append(c.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: "other", Time: &at, FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{}}}`),
		})
		return c
	}
	key := func(name string) corev1.Container {
		return corev1.Container{Name: "main", Env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{
			ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, Key: name,
			},
		}}}}
	}
	other := corev1.Container{Name: "sidecar"}
	late := from(new(true))
	late.EnvFrom[0].ConfigMapRef.Name = "late"
	one := corev1.Container{Name: "main", Env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{
		SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}},
	}}}}
	for name, test := range map[string]struct {
		container corev1.Container
		started   time.Duration // of the container, after the pod's creation
		settings  *corev1.ConfigMap
		want      string
	}{
		"changed before the pod":       {from(nil), time.Second, versioned(settings(-time.Minute), "6"), ""},
		"changed after the pod":        {from(nil), time.Second, settings(time.Minute), "ConfigMap settings, whose data"},
		"in the same second, after it": {from(nil), 0, settings(0), "ConfigMap settings"},
		"in the same second, before":   {from(nil), 0, versioned(settings(0), "4"), ""},
		"between the pod and its container": {
			from(nil), time.Second, versioned(settings(0), "6"), "ConfigMap settings, whose data",
		},
		"just before the pod":          {from(nil), time.Second, versioned(settings(0), "4"), ""},
		"the container started anew":   {from(nil), 2 * time.Minute, versioned(settings(time.Minute), "6"), ""},
		"a node whose clock is behind": {from(nil), -time.Minute, versioned(settings(-time.Second), "6"), ""},
		"a note after the pod":         {from(nil), time.Second, note(settings(-time.Minute)), ""},
		"a key was removed by somebody who owns nothing": {
			from(nil), time.Second, settings(-time.Minute), "whose data was changed",
		},
		"a key that is there":       {key("A"), time.Second, versioned(settings(-time.Minute), "6"), ""},
		"a key that is gone":        {key("B"), time.Second, versioned(settings(-time.Minute), "6"), "no longer has"},
		"another container":         {other, -time.Hour, settings(time.Minute), ""},
		"deleted":                   {from(nil), time.Second, nil, "does not exist"},
		"was never needed":          {from(new(true)), time.Second, nil, ""},
		"vanished after the start":  {late, time.Second, nil, "ConfigMap late, which does not exist"},
		"a Secret that was deleted": {one, time.Second, settings(-time.Minute), "Secret settings"},
		"no settings":               {corev1.Container{Name: "main"}, time.Second, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := fake.NewSimpleClientset()
			if test.settings != nil {
				client = fake.NewSimpleClientset(test.settings)
			}
			// The pod was created in revision 5.
			client.PrependReactor("list", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
				options := a.(k8stesting.ListActionImpl).GetListOptions()
				list := &corev1.PodList{}
				if options.ResourceVersionMatch == metav1.ResourceVersionMatchExact && options.ResourceVersion >= "5" {
					list.Items = []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "team"}}}
				}
				return true, list, nil
			})
			pod := corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Name: "p", Namespace: "team", ResourceVersion: "7", CreationTimestamp: metav1.NewTime(created),
				},
				Spec: corev1.PodSpec{Containers: []corev1.Container{test.container}},
				Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
					Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{
						StartedAt: metav1.NewTime(created.Add(test.started)),
					}},
				}}},
			}
			g := &grading{lab: &Lab{Client: client}}
			original := map[scenario.Ref]bool{
				{APIVersion: "v1", Kind: "ConfigMap", Namespace: "team", Name: "settings"}: true,
			}
			if err := g.outdated(t.Context(), map[string][]corev1.Pod{"n": {pod}}, original); err != nil {
				t.Fatal(err)
			}
			var got string
			for _, d := range g.report.Collateral {
				got += d.String()
			}
			if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("%q, expected %q", got, test.want)
			}
		})
	}
}

// Files in a container stay as they were when their source is deleted (subPath), but a new pod does not get them. A
// source whose data was changed may be read again.
func TestOutdatedFiles(t *testing.T) {
	t.Parallel()
	name := corev1.LocalObjectReference{Name: "late"}
	for what, volume := range map[string]corev1.VolumeSource{
		"ConfigMap": {ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: name, Optional: new(true)}},
		"Secret":    {Secret: &corev1.SecretVolumeSource{SecretName: "late", Optional: new(true)}},
		"projected": {Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: name, Optional: new(true)}},
		}}},
	} {
		pod := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "team"},
			Spec:       corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: volume}}},
		}
		g := &grading{lab: &Lab{Client: fake.NewSimpleClientset()}}
		if err := g.outdated(t.Context(), map[string][]corev1.Pod{"n": {pod}}, nil); err != nil {
			t.Fatal(err)
		}
		if len(g.report.Collateral) != 1 || !strings.Contains(g.report.Collateral[0].Note, "its files come from") {
			t.Errorf("%s: %v", what, g.report.Collateral)
		}
		data := metav1.ObjectMeta{Name: "late", Namespace: "team", CreationTimestamp: metav1.Now()}
		g = &grading{lab: &Lab{Client: fake.NewSimpleClientset(
			&corev1.ConfigMap{ObjectMeta: data}, &corev1.Secret{ObjectMeta: data},
		)}}
		if err := g.outdated(t.Context(), map[string][]corev1.Pod{"n": {pod}}, nil); err != nil {
			t.Fatal(err)
		}
		if len(g.report.Collateral) != 0 {
			t.Errorf("%s that was changed: %v", what, g.report.Collateral)
		}
	}
}
