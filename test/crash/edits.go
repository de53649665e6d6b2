package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// edits are trials in which somebody changes what a revert goes by, or leaves it no room to work.
func edits() []trial {
	const group = "disturbed"
	return []trial{
		{group, "file edited by somebody: superseded, with the difference", after, editedThenReverted},
		{group, "file edited by somebody: superseded, with the difference", alone, editedThenExpired},
		{group, "record in the ledger deleted", alone, ledgerDeleted},
		{group, "record in the ledger edited: rejected", alone, ledgerEdited},
		{group, "record and dead man gone: said, not guessed", after, nothingKnown},
		{group, "disk full", before, fullBefore},
		{group, "disk full", during, fullMeanwhile},
		{group, "disk full", after, fullAfter},
	}
}

const theirLine = "\n# a line of somebody else's\n"

// edited breaks a node, and appends to a file that the break changed.
func edited(s *site, flags ...string) (path string, err error) {
	if _, err := s.broken(flags...); err != nil {
		return "", err
	}
	now, err := readTree(s.node.root)
	if err != nil {
		return "", err
	}
	for path, f := range s.node.was {
		if g, there := now[path]; there && f.Data != g.Data {
			file, err := os.OpenFile(s.node.root+path, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return "", err
			}
			_, err = file.WriteString(theirLine)
			return path, errors.Join(err, file.Close())
		}
	}
	return "", errors.New("the break changed no file that was there before")
}

func editedThenReverted(s *site) error {
	path, err := edited(s, "--ttl", "10m")
	if err != nil {
		return err
	}
	return superseded(s, path)
}

func editedThenExpired(s *site) error {
	path, err := edited(s, s.lasting(30*time.Second)...)
	if err != nil {
		return err
	}
	run, err := s.run()
	if err != nil {
		return err
	}
	if err := s.settled(run.Until.Add(healsWithin).Add(tidyWithin)); err != nil {
		return err
	}
	return superseded(s, path)
}

// superseded reverts and expects that somebody's file is left, and the difference told. Then it does what the other one
// would have to do.
func superseded(s *site, path string) error {
	stdout, stderr, code, err := s.plugin("revert", "--all", "--yes")
	if err != nil {
		return err
	}
	var wrong []error
	said := stdout + stderr
	for _, part := range []string{"superseded", path, "removed by the fault"} {
		if !strings.Contains(said, part) {
			wrong = append(wrong, fmt.Errorf("the revert does not say %q (exit %d): %s", part, code, said))
		}
	}
	data, err := os.ReadFile(s.node.root + path)
	if err != nil || !strings.HasSuffix(string(data), theirLine) {
		wrong = append(wrong, fmt.Errorf("the edit of %s was not left alone: %w", path, err))
	}
	wrong = append(wrong, s.settled(time.Now().Add(patience)), s.closed(), s.node.repair(s.ctx))
	return errors.Join(append(wrong, s.clean())...)
}

func ledgerDeleted(s *site) error {
	run, err := s.broken(s.lasting(30 * time.Second)...)
	if err != nil {
		return err
	}
	if err := s.world.client.CoreV1().ConfigMaps(s.ledger).Delete(s.ctx, run.ID, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return errors.Join(s.healed(run), s.forgotten(run))
}

func ledgerEdited(s *site) error {
	run, err := s.broken(s.lasting(20 * time.Second)...)
	if err != nil {
		return err
	}
	records := s.world.client.CoreV1().ConfigMaps(s.ledger)
	record, err := records.Get(s.ctx, run.ID, metav1.GetOptions{})
	if err != nil {
		return err
	}
	const key = "run.json"
	text := strings.ReplaceAll(record.Data[key], "/etc/containerd", "/etc/elsewhere")
	if text == record.Data[key] {
		return errors.New("the record does not name the file")
	}
	record.Data[key] = text
	if _, err := records.Update(s.ctx, record, metav1.UpdateOptions{}); err != nil {
		return err
	}
	_, stderr, code, err := s.plugin("revert", "--all", "--yes")
	if err != nil {
		return err
	}
	var wrong []error
	if code != 1 || !strings.Contains(stderr, "changed by another client") {
		wrong = append(wrong, fmt.Errorf("the revert believes a record that was edited (exit %d): %s", code, stderr))
	}
	wrong = append(wrong, s.healed(run),
		s.leave(func() error { return eventually(s.ctx, run.Deadline.Add(tidyWithin), s.nothingLeft) }))
	// What an operator does with a record that nobody believes.
	wrong = append(wrong, records.Delete(s.ctx, run.ID, metav1.DeleteOptions{}))
	return errors.Join(append(wrong, s.clean())...)
}

// nothingKnown takes from the node all that knows how it was. The ledger's record is only a claim, so the revert must
// change nothing, and say so. Then it does what an operator would: restore the file from their own copy, and revert
// again.
func nothingKnown(s *site) error {
	if _, err := s.broken("--ttl", "10m"); err != nil {
		return err
	}
	if err := errors.Join(onNode("rm -rf /var/lib/gpu-fault/*")(s), killDeadMan(s)); err != nil {
		return err
	}
	_, stderr, code, err := s.plugin("revert", "--all", "--yes")
	if err != nil {
		return err
	}
	var wrong []error
	if code != 1 || !strings.Contains(stderr, "matches the run's changes according to the ledger") {
		wrong = append(wrong,
			fmt.Errorf("the revert does not say that it restored nothing (exit %d): %s", code, stderr))
	}
	if s.node.changes() == nil {
		wrong = append(wrong, errors.New("the revert restored something, by what is only a claim"))
	}
	return errors.Join(append(wrong, s.node.repair(s.ctx), s.reverted())...)
}

// fullBefore finds a full disk, on which a break must be refused.
func fullBefore(s *site) error {
	if err := fillDisk(s); err != nil {
		return errors.Join(err, freeDisk(s))
	}
	_, stderr, code, err := s.plugin("runtime", "break", s.node.name, "--mode", "missing-handler", "--ttl", "10m",
		"--timeout", "20s", "--yes")
	changed := s.node.changes()
	err = errors.Join(err, changed, freeDisk(s))
	if code != 1 || strings.TrimSpace(stderr) == "" {
		err = errors.Join(err, fmt.Errorf("the break was not refused on a full disk (exit %d): %s", code, stderr))
	}
	return errors.Join(err, s.reverted())
}

// fullMeanwhile fills the disk when the debug pod runs, just before it is asked to change anything: the dead man finds
// no room for what it needs to put everything back, and must not begin.
func fullMeanwhile(s *site) error {
	for attempt := 1; ; attempt++ {
		room, err := breakOnAFullDisk(s)
		switch {
		case err != nil || !room:
			return err
		case attempt == 3:
			return errors.New("the disk did not stay full")
		}
	}
}

// breakOnAFullDisk reports whether there was room after all, because the kubelet had deleted files of ended pods before
// the dead man needed it: the break is then made, and reverted.
func breakOnAFullDisk(s *site) (room bool, err error) {
	change := moment{"exec 2", before} // the first one reads the configuration
	filled := errors.New("the client never came to the change")
	p, err := newProxy(s.world.config, s.dir, func(now moment) bool {
		if now == change {
			filled = fillDisk(s)
		}
		return false
	})
	if err != nil {
		return false, err
	}
	defer p.close()
	c, err := s.launch(p.kubeconfig, nil, "runtime", "break", s.node.name, "--mode", "missing-handler", "--ttl", "10m",
		"--timeout", "2m", "--yes")
	if err != nil {
		return false, err
	}
	code := c.wait(s)
	if filled == nil && code == 0 {
		return true, errors.Join(freeDisk(s), s.reverted())
	}
	err = errors.Join(filled, s.node.changes())
	if code != 1 || !strings.Contains(c.stderr.text(), "no space left on device") {
		err = errors.Join(err,
			fmt.Errorf("the break does not say that the disk is full (exit %d): %s", code, c.stderr.text()))
	}
	err = errors.Join(err, freeDisk(s))
	return false, errors.Join(err, s.reverted())
}

// fullAfter fills the disk when the fault is in place. No new pod may be able to start there; the node must heal
// nevertheless.
func fullAfter(s *site) error {
	if _, err := s.broken("--ttl", "10m"); err != nil {
		return err
	}
	if err := fillDisk(s); err != nil {
		return errors.Join(err, freeDisk(s))
	}
	c, err := s.launch(s.world.kubeconfig, nil, "revert", "--all", "--yes")
	if err != nil {
		return errors.Join(err, freeDisk(s))
	}
	err = eventually(s.ctx, time.Now().Add(patience), s.node.changes)
	err = errors.Join(err, freeDisk(s))
	c.wait(s)
	return errors.Join(err, s.reverted())
}
