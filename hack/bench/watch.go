package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// measureWatch measures the time from the request that cordons a node to the line printed by the watch command, which
// uses the watcher of experiments, and to the event of a bare watch.
func (b *bench) measureWatch(ctx context.Context) ([]row, error) {
	name, err := b.ours(ctx, "xid", "79", b.node, "--gpu", b.gpu, "--yes", "-o", "name")
	if err != nil {
		return nil, err
	}
	id := runID.FindString(name)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines, err := b.follow(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := b.following(ctx, lines); err != nil {
		return nil, err
	}
	events, err := b.client.CoreV1().Nodes().Watch(ctx,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", b.node).String()})
	if err != nil {
		return nil, err
	}
	defer events.Stop()
	var ours, bare sample
	for i := range b.rounds + 1 {
		for _, cordon := range []bool{true, false} {
			mine, floor, err := b.cordon(ctx, cordon, lines, events)
			if err != nil {
				return nil, err
			}
			if i > 0 {
				ours, bare = append(ours, mine.Seconds()), append(bare, floor.Seconds())
			}
		}
	}
	return []row{compared("watch, from cordon to line", "ms", ours, "bare watch", bare).judged()}, b.revert(ctx, 0)
}

// follow starts the watch command, and returns the lines that it prints.
func (b *bench) follow(ctx context.Context, id string) (<-chan seen, error) {
	cmd := exec.CommandContext(ctx, b.plugin, "--kubeconfig", b.kubeconfig, "watch", id)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	lines := make(chan seen, 1000)
	go func() {
		r := bufio.NewScanner(out)
		for r.Scan() {
			lines <- seen{time.Now(), r.Text()}
		}
		close(lines)
		_ = cmd.Wait()
	}()
	return lines, nil
}

// seen is a line with the time at which it was read.
type seen struct {
	at   time.Time
	text string
}

// following waits until the command follows the node. The command first prints past reactions without marking where
// they end, so it counts as ready only when it shows a new change.
func (b *bench) following(ctx context.Context, lines <-chan seen) error {
	var err error
	for range 10 {
		for _, on := range []bool{true, false} {
			if err := b.setUnschedulable(ctx, on); err != nil {
				return err
			}
		}
		if _, err = line(ctx, lines, "uncordoned", 3*time.Second); err == nil {
			return nil
		}
	}
	return err
}

func (b *bench) setUnschedulable(ctx context.Context, on bool) error {
	_, err := b.client.CoreV1().Nodes().Patch(ctx, b.node, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, on), metav1.PatchOptions{})
	return err
}

// line returns the time at which a line with the given word was read.
func line(ctx context.Context, lines <-chan seen, word string, within time.Duration) (time.Time, error) {
	timeout := time.After(within)
	for {
		select {
		case l, more := <-lines:
			if !more {
				return time.Time{}, errors.New("the watch command exited")
			}
			if slices.Contains(strings.Fields(l.text), word) {
				return l.at, nil
			}
		case <-timeout:
			return time.Time{}, fmt.Errorf("timed out waiting for a line with %q", word)
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		}
	}
}

// cordon cordons or uncordons the node, and returns when the watch command and the bare watch have reported the change.
func (b *bench) cordon(
	ctx context.Context, on bool, lines <-chan seen, events watch.Interface,
) (ours, bare time.Duration, err error) {
	bares := make(chan time.Time, 1)
	go func() {
		for e := range events.ResultChan() {
			if n, is := e.Object.(*corev1.Node); is && n.Spec.Unschedulable == on {
				bares <- time.Now()
				return
			}
		}
	}()
	start := time.Now()
	if err := b.setUnschedulable(ctx, on); err != nil {
		return 0, 0, err
	}
	word := "uncordoned"
	if on {
		word = "cordoned"
	}
	at, err := line(ctx, lines, word, 30*time.Second)
	if err != nil {
		return 0, 0, err
	}
	select {
	case floor := <-bares:
		return at.Sub(start), floor.Sub(start), nil
	case <-time.After(30 * time.Second):
		return 0, 0, errors.New("timed out waiting for the event of the bare watch")
	}
}
