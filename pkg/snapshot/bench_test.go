package snapshot

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BenchmarkRedact removes the secrets of 1,000 pods and 100 lines of a log.
func BenchmarkRedact(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer() // Redact works in place
		s := &Snapshot{}
		for i := range 1000 {
			s.Pods = append(s.Pods, corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: fmt.Sprintf("train-%d", i)},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: "main", Image: "registry.example.com/train:v1",
					Args: []string{"--token=hush", "--epochs", "3"},
					Env:  []corev1.EnvVar{{Name: "HF_TOKEN", Value: "hush"}, {Name: "RANK", Value: "0"}},
				}}},
			})
		}
		for i := range 100 {
			s.Logs = append(s.Logs, Log{Text: fmt.Sprintf("step %d\nAuthorization: Bearer hush-%d\n", i, i)})
		}
		b.StartTimer()
		Redact(s)
		if s.Meta.Redacted["pods env"] != 1000 || s.Meta.Redacted["logs"] != 100 {
			b.Fatalf("%v were removed", s.Meta.Redacted)
		}
	}
}
