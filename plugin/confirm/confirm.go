// Package confirm asks the user to confirm a change.
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

// ErrDeclined is returned if the user does not confirm.
var ErrDeclined = errors.New("nothing was changed: not confirmed")

// Ask prints the question to stderr and returns nil if the answer is y or yes. If the yes parameter is true, it does
// not ask. If stdin is not a terminal, it fails, so that scripts do not hang.
func Ask(ctx context.Context, streams genericiooptions.IOStreams, question string, yes bool) error {
	if yes {
		return nil
	}
	if !isTerminal(streams.In) {
		return errors.New(
			"nothing was changed: stdin is not a terminal; pass --yes to skip the confirmation",
		)
	}
	fmt.Fprintf(streams.ErrOut, "%s (y/N): ", question)
	answer := make(chan string, 1)
	go func() { // a read from a terminal cannot be canceled, but the process exits anyway
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
