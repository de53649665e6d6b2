package network

import "fmt"

// Wording for each of the three faults.

// share describes which packets are dropped.
func (p *partition) share() string {
	if p.loss == 0 {
		return "packets"
	}
	return fmt.Sprintf("%d%% of the packets", p.loss)
}

// effect describes what happens to the packets, as the action of a run.
func (p *partition) effect() string {
	if p.slow != nil {
		return "slow down packets (" + p.slow.String() + ")"
	}
	return "drop " + p.share()
}

func (p *partition) summary() string {
	switch {
	case p.slow != nil:
		return fmt.Sprintf("Slow: %s: %s", p, p.slow.String())
	case p.loss > 0:
		return fmt.Sprintf("Loss of %d%%: %s", p.loss, p)
	}
	return "Partition: " + p.String()
}

func (p *partition) result() string {
	switch {
	case p.slow != nil:
		return "slow"
	case p.loss > 0:
		return "losing packets"
	}
	return "partitioned"
}

func (p *partition) question() string {
	switch {
	case p.slow != nil:
		return "Slow down the network of " + p.subject() + " on"
	case p.loss > 0:
		return fmt.Sprintf("Drop %s of %s on", p.share(), p.subject())
	}
	return "Cut off " + p.subject() + " on"
}
