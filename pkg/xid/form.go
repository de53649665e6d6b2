package xid

import "fmt"

// Form is the format of a line for readers of the kernel log.
type Form string

const (
	// FormAuto means FormKernel for writes to /dev/kmsg, and FormModule for a kernel module.
	FormAuto Form = "auto"
	// FormKernel is "kernel: NVRM: Xid ...". journald uses "kernel" as the identifier and keeps the rest, so that its
	// entry differs from the driver's only in the facility. This is the only form that all log readers detect.
	FormKernel Form = "kernel"
	// FormPlain is "NVRM: Xid ...". In /dev/kmsg, it is identical to the driver's text. However, journald strips "NVRM:
	// " from records without the kernel facility, and records from user space never have this facility.
	FormPlain Form = "plain"
	// FormBracket is "[6085126.134786] NVRM: Xid ...". journald strips nothing because the first word does not end in
	// ":".
	FormBracket Form = "bracket"
	// FormModule is the driver's text with the kernel facility. Only the kernel can write it, so users cannot select
	// it.
	FormModule Form = "module"
)

// Forms returns the forms that a user can select.
func Forms() []Form { return []Form{FormAuto, FormKernel, FormPlain, FormBracket} }

// ParseForm parses auto, kernel, plain or bracket. An empty string means auto.
func ParseForm(s string) (Form, error) {
	switch f := Form(s); f {
	case "":
		return FormAuto, nil
	case FormAuto, FormKernel, FormPlain, FormBracket:
		return f, nil
	default:
		return "", fmt.Errorf("unknown form %q; supported values: auto, kernel, plain, bracket", s)
	}
}

// Via is the way in which a line is written to the kernel log.
type Via string

const (
	ViaKmsg Via = "kmsg" // a write to /dev/kmsg from user space; facility user
	ViaKmod Via = "kmod" // printk in a kernel module; facility kern
)

// ParseVia parses kmsg or kmod. An empty string means kmsg.
func ParseVia(s string) (Via, error) {
	switch v := Via(s); v {
	case "":
		return ViaKmsg, nil
	case ViaKmsg, ViaKmod:
		return v, nil
	default:
		return "", fmt.Errorf("unknown method %q; supported values: kmsg, kmod", s)
	}
}

// Resolve returns the actual form for a Via, never FormAuto.
func (f Form) Resolve(v Via) (Form, error) {
	if v == ViaKmod {
		switch f {
		case FormAuto, FormPlain, FormModule, "":
			return FormModule, nil
		}
		return "",
			fmt.Errorf("the kernel module prints the driver's own text: remove --form %s, or use --via kmsg", f)
	}
	switch f {
	case FormAuto, "":
		return FormKernel, nil
	case FormModule:
		return "",
			fmt.Errorf("a record written to /dev/kmsg cannot have the kernel facility: use --via kmod, or another form")
	}
	return f, nil
}
