// Command krew proves a release (`make test-krew`): the archives of dist are right, reproducible and small enough, and
// the real krew and the real kubectl install, upgrade and remove them by the manifest of dist, word for word. The
// release's page on github.com is played by this program; nothing else is asked for anything, so that no network is
// needed.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	w, err := newWorld(ctx)
	if err != nil {
		fmt.Fprintf(os.Stderr, "test-krew: %v\n", err)
		os.Exit(1)
	}
	passed, all := run(w, os.Stdout)
	w.close()
	fmt.Printf("krew steps passed %d of %d\n", passed, all)
	if passed < all {
		os.Exit(1)
	}
}

// step is one thing that must hold. What it says of itself stands in the table; an error is the reason why it does not
// hold.
type step struct {
	name string
	run  func(*world) (string, error)
}

// steps returns in the order of a release's life: later ones use what earlier ones installed.
func steps() []step {
	return []step{
		{"checksums hold for every file", checksumsHold},
		{"archives hold program and licenses", archivesHold},
		{"archive at most 23 MB, program 52 MiB", sizes},
		{"programs carry version, commit, date", stamps},
		{"node helpers are those of this build", helperDigests},
		{"bills of materials name all modules", bills},
		{"another folder gives the same archive", reproducible},
		{"manifest keeps the index's rules", indexRules},
		{"validate-krew-manifest, all platforms", validates},
		{"install by manifest and archive", installArchive},
		{"kubectl finds it, and it answers", answers},
		{"kubectl completes it, through a link", completes},
		{"the tab key in bash, with kubectl's", completesInBash},
		{"the tab key in zsh, with kubectl's", completesInZsh},
		{"the tab key in fish, with kubectl's", completesInFish},
		{"uninstall, and completion's link is left", dangling},
		{"update, search, info in an index", index},
		{"install by name", installByName},
		{"upgrade", upgrade},
		{"completion goes on after the upgrade", completesUpgraded},
		{"uninstall leaves nothing", uninstall},
		{"refused: wrong sha256", wrongSum},
		{"refused: archive without LICENSE", noLicense},
		{"refused: platform that is not listed", unlistedPlatform},
		{"refused: two versions side by side", twoVersions},
		{"krew's folder missing or read-only", krewRoot},
		{"nobody else was asked for anything", nobodyElse},
	}
}

// run takes the steps and prints the table. A step that fails does not keep later ones from their turn.
func run(w *world, out io.Writer) (passed, all int) {
	var failures []string
	fmt.Fprintf(out, "%-42s %8s  %s\n", "STEP", "SECONDS", "RESULT")
	for _, s := range steps() {
		if w.ctx.Err() != nil {
			break
		}
		start := time.Now()
		said, err := s.run(w)
		result := "passed"
		if err != nil {
			result = "FAILED"
			failures = append(failures, fmt.Sprintf("%s: %v", s.name, err))
		} else {
			passed++
		}
		if said != "" {
			result += "  " + said
		}
		fmt.Fprintf(out, "%-42s %8.1f  %s\n", s.name, time.Since(start).Seconds(), result)
	}
	fmt.Fprintln(out)
	if w.sizes.Len() > 0 {
		fmt.Fprintf(out, "%s\n", w.sizes.String())
	}
	for _, f := range failures {
		fmt.Fprintf(out, "FAILED %s\n\n", firstLines(strings.TrimSpace(f)))
	}
	return passed, len(steps())
}

// firstLines leaves krew's stack traces out.
func firstLines(text string) string {
	const enough = 12
	lines := strings.SplitN(text, "\n", enough+1)
	if len(lines) > enough {
		lines[enough] = "..."
	}
	return strings.Join(lines, "\n")
}
