package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// disturbance is what somebody else does to a fault while it is made, or while it is in place.
type disturbance struct {
	name string
	do   func(s *site) error
	// repair is what the trial itself has to put right again; nil: nothing.
	repair func(s *site) error
	// columns are where it is tried: during, after (then it is reverted), alone (then the time is up).
	columns []string
}

func disturbances() []disturbance {
	return []disturbance{
		{name: "debug pod deleted", do: deletePods(1), columns: []string{during, after}},
		{name: "debug pod deleted by force", do: deletePods(0), columns: []string{during, after}},
		{name: "containerd killed", do: onNode(killContainerd), columns: []string{during, after, alone}},
		{name: "kubelet restarted", do: onNode(restartKubelet), columns: []string{during, after, alone}},
		{name: "dead man killed", do: killDeadMan, columns: []string{during, after}},
		{
			name: "record on the node deleted", do: onNode("rm -rf /var/lib/gpu-fault/*"),
			columns: []string{after, alone},
		},
		{name: "disk full", do: fillDisk, repair: freeDisk, columns: []string{alone}},
	}
}

func (d disturbance) trials() []trial {
	var all []trial
	for _, column := range d.columns {
		run := map[string]func(*site) error{during: d.whileMade, after: d.inPlace, alone: d.timeIsUp}[column]
		all = append(all, trial{"disturbed", d.name, column, run})
	}
	return all
}

// whileMade disturbs between the change of the files and the restart of the runtime, and reverts.
func (d disturbance) whileMade(s *site) error {
	c, err := s.launch(s.world.kubeconfig, func(*client, string) {}, "runtime", "break", s.node.name, "--mode",
		"missing-handler", "--ttl", "10m", "--yes")
	if err != nil {
		return err
	}
	// The client may not say that the files were changed, if they are and the runtime responds by the time it asks.
	seen := false
	changed.await(s.node, c.exited, func() { seen, err = true, d.do(s) })
	c.wait(s)
	if !seen {
		err = fmt.Errorf("the client ended before the files were seen to change: %s", c.stderr.text())
	}
	if d.repair != nil {
		err = errors.Join(err, d.repair(s))
	}
	return errors.Join(err, s.reverted())
}

// inPlace disturbs a fault that is in place, and reverts.
func (d disturbance) inPlace(s *site) error {
	if _, err := s.broken("--ttl", "10m"); err != nil {
		return err
	}
	err := d.do(s)
	if d.repair != nil {
		err = errors.Join(err, d.repair(s))
	}
	return errors.Join(err, s.reverted())
}

// timeIsUp disturbs a fault that is in place, and reverts nothing.
func (d disturbance) timeIsUp(s *site) error {
	run, err := s.broken(s.lasting(30 * time.Second)...)
	if err != nil {
		return err
	}
	err = d.do(s)
	healed := s.healed(run)
	if d.repair != nil {
		err = errors.Join(err, d.repair(s))
	}
	return errors.Join(err, healed, s.forgotten(run))
}

// killContainerd waits for a process first: between two of them the number is 0, which to kill(1) means all of its own
// group.
const killContainerd = `for i in $(seq 100); do
  pid=$(systemctl show -p MainPID --value containerd)
  [ "$pid" -gt 1 ] && kill -9 "$pid" && exit 0
  sleep 0.05
done
exit 1`

// restartKubelet tries again, as systemd does: a kubelet that finds no container runtime ends, and containerd may be
// about to start.
const restartKubelet = `for i in $(seq 40); do
  systemctl restart kubelet && exit 0
  sleep 0.25
done
exit 1`

func onNode(script string) func(*site) error {
	return func(s *site) error { _, err := s.node.sh(s.ctx, script); return err }
}

func killDeadMan(s *site) error {
	pid, err := s.node.deadMan()
	if err != nil {
		return err
	}
	_, err = s.node.sh(s.ctx, fmt.Sprintf("kill -9 %d", pid))
	return err
}

// deletePods deletes what runs in the ledger's namespace, as somebody who tidies up.
func deletePods(grace int64) func(*site) error {
	return func(s *site) error {
		return s.world.client.CoreV1().Pods(s.ledger).DeleteCollection(s.ctx,
			metav1.DeleteOptions{GracePeriodSeconds: &grace}, metav1.ListOptions{})
	}
}

// fillDisk leaves no byte free on the file systems that hold the node's configuration and the dead man's records. Both
// are on one tmpfs, with all that containerd and the kubelet write. It is made as small as what is on it, so that it
// takes no memory to fill it.
func fillDisk(s *site) error {
	_, err := s.node.sh(s.ctx, `used=$(df -k --output=used /var/lib/kubelet | tail -n 1)
mount -o remount,size=$((used))k /var/lib/kubelet
dd if=/dev/zero of=/var/lib/kubelet/full bs=4k 2>/dev/null
[ $(df -k --output=avail /var/lib/kubelet | tail -n 1) -lt 8 ]`)
	return err
}

func freeDisk(s *site) error {
	_, err := s.node.sh(context.WithoutCancel(s.ctx),
		"mount -o remount,size=8g /var/lib/kubelet; rm -f /var/lib/kubelet/full")
	return err
}
