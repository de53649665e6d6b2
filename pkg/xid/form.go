package xid

import "fmt"

// Form is how a line is dressed for those who read it from the kernel log.
type Form string

const (
	// FormAuto is FormKernel for writes to /dev/kmsg and FormModule for a kernel module.
	FormAuto Form = "auto"
	// FormKernel is "kernel: NVRM: Xid ...". journald takes "kernel" for the identifier and keeps the rest, so that its
	// entry is that of the driver but for the facility. The only form that all readers of the log see.
	FormKernel Form = "kernel"
	// FormPlain is "NVRM: Xid ...". In /dev/kmsg it is the driver's text, but journald cuts the "NVRM: " off, because
	// the facility of what user space writes is never that of the kernel.
	FormPlain Form = "plain"
	// FormBracket is "[6085126.134786] NVRM: Xid ...". A word that does not end in ":" stops journald from cutting.
	FormBracket Form = "bracket"
	// FormModule is the driver's text with the kernel's facility. Only the kernel can print it; no user can ask for it.
	FormModule Form = "module"
)

// Forms returns the forms that a user can ask for.
func Forms() []Form { return []Form{FormAuto, FormKernel, FormPlain, FormBracket} }

// ParseForm reads auto, kernel, plain or bracket; "" is auto.
func ParseForm(s string) (Form, error) {
	switch f := Form(s); f {
	case "":
		return FormAuto, nil
	case FormAuto, FormKernel, FormPlain, FormBracket:
		return f, nil
	default:
		return "", fmt.Errorf("unknown form %q: use auto, kernel, plain or bracket", s)
	}
}

// Via is the way a line takes into the kernel log.
type Via string

const (
	ViaKmsg Via = "kmsg" // a write to /dev/kmsg from user space; facility user
	ViaKmod Via = "kmod" // printk of a kernel module; facility kern
)

// ParseVia reads kmsg or kmod; "" is kmsg.
func ParseVia(s string) (Via, error) {
	switch v := Via(s); v {
	case "":
		return ViaKmsg, nil
	case ViaKmsg, ViaKmod:
		return v, nil
	default:
		return "", fmt.Errorf("unknown way %q: use kmsg or kmod", s)
	}
}

// Resolve returns the form for a way: never FormAuto.
func (f Form) Resolve(v Via) (Form, error) {
	if v == ViaKmod {
		switch f {
		case FormAuto, FormPlain, FormModule, "":
			return FormModule, nil
		}
		return "",
			fmt.Errorf("the kernel module prints the driver's own text: leave out --form %s, or use --via kmsg", f)
	}
	switch f {
	case FormAuto, "":
		return FormKernel, nil
	case FormModule:
		return "",
			fmt.Errorf("a write to /dev/kmsg cannot have the facility of the kernel: use --via kmod, or another form")
	}
	return f, nil
}
