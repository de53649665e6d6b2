// Package confirm asks before something is changed.
package confirm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// ErrDeclined says that the user answered no.
var ErrDeclined = errors.New("nothing was changed: not confirmed")

// Ask shows question on stderr and waits for y or yes. Without a terminal to ask on it fails and names --yes, so that
// no script hangs. With yes it does not ask.
func Ask(ctx context.Context, streams genericiooptions.IOStreams, question string, yes bool) error {
	if yes {
		return nil
	}
	if !isTerminal(streams.In) {
		return errors.New(
			"nothing was changed: there is no terminal to ask on; give --yes to go ahead without a question",
		)
	}
	fmt.Fprintf(streams.ErrOut, "%s (y/N): ", question)
	answer := make(chan string, 1)
	go func() { // a read from a terminal cannot be cancelled; the process ends anyway
		line, _ := bufio.NewReader(streams.In).ReadString('\n')
		answer <- line
	}()
	select {
	case <-ctx.Done():
		return fmt.Errorf("nothing was changed: %w", context.Cause(ctx))
	case line := <-answer:
		switch strings.ToLower(strings.TrimSpace(line)) {
		case "y", "yes":
			return nil
		default:
			return ErrDeclined
		}
	}
}

func isTerminal(in io.Reader) bool {
	f, ok := in.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
