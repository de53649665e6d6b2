// Command kubectl-gpu_fault is the kubectl plugin `kubectl gpu-fault`: it breaks GPU nodes on purpose, verifies that
// the fault is in place, and restores everything.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // credentials of cloud providers, as in kubectl
	"k8s.io/klog/v2"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sandbox"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

func main() {
	if code, is := sandbox.First(os.Args, os.Stdout, os.Stderr); is { // required for the programs of `scenario run`
		os.Exit(code)
	}
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	os.Exit(run(streams, os.Args))
}

// run executes the command line and returns the exit code. It prints a short message that reports a panic as a bug; the
// stack trace is logged at -v 1 and higher.
func run(streams genericiooptions.IOStreams, args []string) (code int) {
	defer func() {
		if bug := recover(); bug != nil {
			reportBug(streams.ErrOut, bug)
			klog.V(1).Infof("%s", debug.Stack())
			code = plugin.ExitError
		}
	}()
	ctx, stop := withSignals(context.Background(), streams)
	defer stop()

	cmd := plugin.NewCommand(streams)
	cmd.SetArgs(arguments(args))
	err := cmd.ExecuteContext(ctx)
	if err != nil && !errors.Is(err, syscall.EPIPE) {
		if message := plugin.ErrorMessage(err); message != "" {
			printer.Talk(streams.ErrOut, "%s", message)
		}
	}
	return plugin.ExitCode(ctx, err)
}

// reportBug prints the value of a panic. The value is sanitized because it may contain strings from the cluster.
func reportBug(w io.Writer, bug any) {
	fmt.Fprintf(w,
		"error: this is a bug in kubectl gpu-fault: %s\nlist open runs with `kubectl gpu-fault list`, revert them with "+
			"`kubectl gpu-fault revert RUN --force`, and please report the bug with the output of -v 1\n",
		printer.Clean(fmt.Sprint(bug)))
}

// arguments returns the arguments without the program name. To complete the command line of a plugin, kubectl runs
// kubectl_complete-NAME with the words typed so far. kubectl_complete-NAME may be a link to this program.
func arguments(args []string) []string {
	if strings.HasPrefix(filepath.Base(args[0]), "kubectl_complete-") {
		return append([]string{"__complete"}, args[1:]...)
	}
	return args[1:]
}

// hushLibraries disables client-go's logs, unless -v enables them, because after an interruption client-go would log
// each canceled request.
func hushLibraries() {
	if klog.V(1).Enabled() {
		return
	}
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	all := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(all)
	_ = all.Set("stderrthreshold", "FATAL") // a valid severity name
}

// sameInterrupt is the time during which a second signal does not count as another interrupt.
const sameInterrupt = 500 * time.Millisecond

// withSignals returns a context that is canceled by the first termination signal (Ctrl-C, a closed terminal, a lost SSH
// connection), so that the command can clean up. A second signal terminates the program immediately. SIGPIPE is
// ignored, so that a closed pipe (`| head`) only makes writes fail and does not stop a run halfway.
func withSignals(parent context.Context, streams genericiooptions.IOStreams) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	go func() {
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
		fmt.Fprintln(streams.ErrOut, "\ninterrupted: cleaning up (interrupt again to quit immediately)")
		hushLibraries()
		cancel(plugin.ErrInterrupted)
		// Programs such as timeout send the same signal twice: to the process, and to its process group.
		for again := time.Now().Add(sameInterrupt); time.Now().Before(again); {
			<-signals
		}
		fmt.Fprintln(streams.ErrOut,
			"quit without cleaning up; to list open runs: kubectl gpu-fault list; to revert them: kubectl gpu-fault revert RUN --force")
		os.Exit(plugin.ExitInterrupted)
	}()
	return ctx, func() { signal.Stop(signals); cancel(nil) }
}
