// Command kubectl-gpu_fault is the kubectl plugin `kubectl gpu-fault`: it breaks GPU nodes on purpose, proves that the
// fault landed, and puts everything back.
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

	"k8s.io/cli-runtime/pkg/genericiooptions"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // cloud providers' credentials, as in kubectl
	"k8s.io/klog/v2"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

func main() {
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	os.Exit(run(streams, os.Args))
}

// run executes the command line and returns the exit code. A bug shows as one line that says where to report it; -v 1
// or more shows the trace.
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

// reportBug prints what a panic says, which may hold text from the cluster.
func reportBug(w io.Writer, bug any) {
	fmt.Fprintf(w,
		"error: this is a bug in kubectl gpu-fault: %s\nsee what was begun with `kubectl gpu-fault list`, undo it with "+
			"`kubectl gpu-fault revert RUN --force`, and please report it with the output of -v 1\n",
		printer.Clean(fmt.Sprint(bug)))
}

// arguments returns the words after the program's name. kubectl completes a plugin's command line by running
// kubectl_complete-NAME with the words typed so far; a link of that name to this program is all that it takes.
func arguments(args []string) []string {
	if strings.HasPrefix(filepath.Base(args[0]), "kubectl_complete-") {
		return append([]string{"__complete"}, args[1:]...)
	}
	return args[1:]
}

// hushLibraries ends what client-go logs of its own accord: that each request which was under way is cut off is what
// was asked for. Who asked for logs by -v still gets them.
func hushLibraries() {
	if klog.V(1).Enabled() {
		return
	}
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	all := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(all)
	_ = all.Set("stderrthreshold", "FATAL") // a name that klog knows
}

// withSignals returns a context that the first signal to end cancels (Ctrl-C, a closed terminal, a lost ssh
// connection), so that whatever runs cleans up. The second one ends the program at once. A reader that goes away (`|
// head`) only makes writes fail: a run must not die half-way because nobody looks at it any more.
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
		fmt.Fprintln(streams.ErrOut, "\ninterrupted: cleaning up (once more to quit at once)")
		hushLibraries()
		cancel(plugin.ErrInterrupted)
		<-signals
		fmt.Fprintln(streams.ErrOut,
			"quit without cleaning up; see what is left: kubectl gpu-fault list; undo it: kubectl gpu-fault revert RUN --force")
		os.Exit(plugin.ExitInterrupted)
	}()
	return ctx, func() { signal.Stop(signals); cancel(nil) }
}
