package xid

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/kernellog"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/gpus"
)

// options are the validated options of `xid CODE NODE`.
type options struct {
	inject
	selectors []xid.Selector
	gpus      gpus.Choices
	form      xid.Form
	text      xid.Options // without the PCI address, UUID and driver, which depend on the node
	driver    string
	noProcess bool
	hasLink   bool
	link      int
	cascade   bool
	count     int
	interval  time.Duration
	layers    layering
}

// maxRecords limits a burst, because the kernel's buffer holds only a few thousand records, and readers lose
// overwritten records.
const maxRecords = 10000

// toOptions checks everything that does not require a cluster.
func (f *flags) toOptions(args []string) (*options, error) {
	f.Nodes.Names = args[1:]
	if f.Fleet.InCluster && !f.layers.isOne() {
		return nil, errors.New("--in-cluster cannot be used with --layers: it only writes to kernel logs")
	}
	if err := f.inject.validate(); err != nil {
		return nil, err
	}
	o := &options{
		inject: f.inject, driver: f.driver, cascade: f.cascade, count: f.count, interval: f.interval,
		text:    xid.Options{Seed: f.seed, Message: f.message, Switch: f.swtch},
		hasLink: f.link >= 0, link: f.link,
	}
	var err error
	for word := range strings.SplitSeq(args[0], ",") {
		selector, err := xid.ParseSelector(word)
		if err != nil {
			return nil, swapped(err, args)
		}
		o.selectors = append(o.selectors, selector)
	}
	if o.form, err = f.lineForm(); err != nil {
		return nil, err
	}
	if o.gpus, err = gpus.Parse(f.gpu); err != nil {
		return nil, err
	}
	if _, err := xid.ParseGeneration(f.driver); err != nil {
		return nil, fmt.Errorf("--driver: %w", err)
	}
	if o.noProcess = f.process == "none"; !o.noProcess && f.process != "" {
		if o.text.Process, err = xid.ParseProcess(f.process); err != nil {
			return nil, fmt.Errorf("--process PID,NAME: %w", err)
		}
	}
	if o.text.MIG, err = xid.ParseMIG(f.mig); err != nil {
		return nil, fmt.Errorf("--mig: %w", err)
	}
	if f.count < 1 || f.count > maxRecords {
		return nil, fmt.Errorf("invalid value %d for --count: must be 1 to %d", f.count, maxRecords)
	}
	if f.interval < 0 || f.interval > longest {
		return nil, fmt.Errorf("invalid value %s for --interval: must be 0s to %s", f.interval, longest)
	}
	if f.interval > 0 && f.count == 1 {
		return nil, fmt.Errorf("--interval requires --count 2 or more")
	}
	if err := o.checkSwitches(); err != nil {
		return nil, err
	}
	o.layers = f.layers
	if err := o.layers.validate(o); err != nil {
		return nil, err
	}
	// Compose the records now, so that an invalid message is reported before the node is contacted.
	sample, err := o.compose(o.sample())
	if err != nil {
		return nil, err
	}
	return o, f.checkRecords(sample, o.lasts(sample))
}

// lasts returns the total delay of the writes to one node: the cascades of all GPUs, and the pauses between rounds.
func (o *options) lasts(sample []kernellog.Record) time.Duration {
	pauses := time.Duration(o.count-1) * o.interval
	return (duration(sample)-pauses)*time.Duration(o.gpus.AtMost()) + pauses
}

// checkRecords rejects records that the helper pod would reject, before a pod is created.
func (f *inject) checkRecords(records []kernellog.Record, lasts time.Duration) error {
	if lasts < 0 || lasts > longest {
		return fmt.Errorf("writing would take longer than %s: lower --count or --interval", longest)
	}
	request := api.WriteKmsg{}
	for _, r := range records {
		request.Records = append(request.Records, r.KmsgRecord)
	}
	check := request.Validate
	if f.via == string(xid.ViaKmod) {
		check = func() error { return api.CheckModuleRecords(request.Records) }
	}
	if err := check(); err != nil {
		return fmt.Errorf("invalid kernel log record: %w", err)
	}
	return nil
}

// swapped returns a more helpful error if the user specified the node before the code.
func swapped(err error, args []string) error {
	if len(args) == 2 {
		if _, notCode := xid.ParseSelector(args[1]); notCode == nil {
			return fmt.Errorf("the code comes before the node: xid %s %s", args[1], args[0])
		}
	}
	return err
}

// checkSwitches checks the flags for NVSwitches. SXids are NVSwitch errors, and an NVSwitch has its own PCI address.
func (o *options) checkSwitches() error {
	if o.link > 999 {
		return fmt.Errorf("invalid value %d for --link: must be 0 to 999", o.link)
	}
	if o.text.Switch != 0 && !o.isSwitch() {
		return fmt.Errorf("--switch requires an NVSwitch code, such as sxid:20034, not %s", o.selectors[0])
	}
	if o.cascade && o.selectors[0].Kind == xid.KindFallenOff {
		return fmt.Errorf("--cascade cannot be used with %s: no accompanying records are known", o.selectors[0])
	}
	if o.hasLink && !o.isSwitch() {
		return fmt.Errorf("--link requires an NVSwitch code, such as sxid:20034, not %s", o.selectors[0])
	}
	for _, s := range o.selectors {
		if s.Kind != xid.KindSXid {
			continue
		}
		if o.gpus.Address() == nil {
			return fmt.Errorf(
				"%s is an NVSwitch error: specify the PCI address of the switch, such as --gpu 0000:05:00 (`lspci | grep -i nvswitch` on the node)",
				s,
			)
		}
		if len(o.selectors) > 1 || o.cascade {
			return fmt.Errorf("%s cannot be used with other codes or --cascade", s)
		}
	}
	return nil
}

func (o *options) isSwitch() bool { return o.selectors[0].Kind == xid.KindSXid }
