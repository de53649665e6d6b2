package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// expiredTimeout is short, so that a warning does not delay a command.
const expiredTimeout = 2 * time.Second

// warnOfExpired makes every command that connected to a cluster print a warning about expired runs in that cluster when
// it ends. Commands that report expired runs themselves are skipped.
func warnOfExpired(cmd *cobra.Command, connection *kube.Connection, streams genericiooptions.IOStreams) {
	for _, sub := range cmd.Commands() {
		warnOfExpired(sub, connection, streams)
	}
	run := cmd.RunE
	if run == nil ||
		slices.Contains([]string{"list", "revert", "leftovers"}, cmd.Name()) && cmd.Parent().Parent() == nil {
		return
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		if cluster := connection.Connected(); cluster != nil && cmd.Context().Err() == nil {
			if line := expired(cmd.Context(), ledger.New(cluster.Client, connection.LedgerNamespace)); line != "" {
				printer.Talk(streams.ErrOut, "Warning: %s", line)
			}
		}
		return err
	}
}

// expired returns a warning about runs that have expired but are not confirmed as reverted. It returns "" if there are
// none, or if the user may not read the ledger.
func expired(ctx context.Context, store *ledger.Store) string {
	ctx, cancel := context.WithTimeout(ctx, expiredTimeout)
	defer cancel()
	open, err := store.List(ctx, ledger.Active)
	if err != nil {
		return ""
	}
	var over []string
	for _, run := range open.Runs {
		if pending := run.Pending(); run.Expired(store.Now()) && len(pending) > 0 {
			over = append(over, fmt.Sprintf("%s on %s", run.ID, pending[0].Target))
		}
	}
	switch len(over) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("%s expired and has not been confirmed as reverted: %s", over[0],
			store.Command("revert", "--expired"))
	}
	return fmt.Sprintf("%s expired (%s) and have not been confirmed as reverted: %s",
		count.Of(len(over), "run"), strings.Join(over[:min(3, len(over))], ", "), store.Command("revert", "--expired"))
}
