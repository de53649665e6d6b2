package words

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestAgeText verifies that ages are printed in readable units.
func TestAgeText(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 90 * time.Second: "1m", 61 * time.Minute: "1h1m", 50 * time.Hour: "2d2h",
	} {
		if got := AgeText(d); got != want {
			t.Errorf("ageText(%s) = %s, want %s", d, got, want)
		}
	}
	if got := InWords(corev1.ResourceMemory, 1<<30); got != "1024Mi" {
		t.Errorf("a GiB is %s", got)
	}
}
