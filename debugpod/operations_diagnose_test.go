package debugpod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// TestDiagnoseOfRealHelper holds that the client understands what the helper says, of a node on which there is nothing.
func TestDiagnoseOfRealHelper(t *testing.T) {
	t.Parallel()
	var commands []string
	session := testSession(t, nil)
	session.runner.Execer = realHelper(t, &commands)
	found, err := session.Diagnose(t.Context(), api.Diagnose{Units: []string{"kubelet.service"}})
	if err != nil {
		t.Fatal(err)
	}
	if found.Probe.Time.IsZero() || found.Probe.Unread["pci"] == "" {
		t.Errorf("%+v", found.Probe)
	}
	var failure *api.Error
	if _, err := session.Diagnose(t.Context(), api.Diagnose{Units: []string{"*"}}); !errors.As(err, &failure) ||
		failure.Code != api.CodeBadRequest {
		t.Errorf("of a pattern: %v", err)
	}
}

// TestDiagnoseLongAnswer holds that the client takes an answer as long as the helper makes them.
func TestDiagnoseLongAnswer(t *testing.T) {
	t.Parallel()
	const head, end = `{"protocol":1,"done":true,"diagnosis":{"info":{},"runtime":{"kubelet":{}},"probe":{"driver":{}},"smi":"`,
		"\"}}\n"
	long := strings.Repeat("x", api.MaxAnswer-len(head)-len(end))
	found, err := testSession(t, says(head+long+end, nil)).Diagnose(t.Context(), api.Diagnose{})
	if err != nil || len(found.SMI) != len(long) {
		t.Errorf("got %v", err)
	}
	if _, err := testSession(t, says(`{"protocol":1,"done":true}`+"\n", nil)).Diagnose(
		t.Context(), api.Diagnose{},
	); !errors.Is(err, ErrOutputLost) {
		t.Errorf("of an answer without a diagnosis: %v", err)
	}
}

// TestDiagnoseHelperStays holds that an answer counts also when the helper does not end after it, as a hung file system
// holds a thread of it.
func TestDiagnoseHelperStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		session := testSession(t, func(ctx context.Context, _ []string, s Streams) error {
			_, _ = io.WriteString(s.Out,
				`{"protocol":1,"done":true,"diagnosis":{"info":{},"runtime":{"kubelet":{}},"probe":{"driver":{},"cmdline":"x"}}}`+
					"\n")
			<-ctx.Done()
			return fmt.Errorf("cut: %w", ctx.Err())
		})
		start := time.Now()
		found, err := session.Diagnose(t.Context(), api.Diagnose{})
		if err != nil || found.Probe.Cmdline != "x" {
			t.Fatalf("got %+v, %v", found, err)
		}
		if took := time.Since(start); took > lastWord+farewell+time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
