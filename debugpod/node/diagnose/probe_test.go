package diagnose

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostexec"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/nodetest"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/process"
)

func TestParseOSRelease(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text string
		want map[string]string
	}{
		"Ubuntu": {"PRETTY_NAME=\"Ubuntu 24.04.1 LTS\"\nVERSION_ID=\"24.04\"\nVERSION_CODENAME=noble\nID=ubuntu\nID_LIKE=debian\nLOGO=x\n",
			map[string]string{
				"PRETTY_NAME": "Ubuntu 24.04.1 LTS", "VERSION_ID": "24.04", "VERSION_CODENAME": "noble", "ID": "ubuntu",
				"ID_LIKE": "debian",
			}},
		"COS": {"ID=cos\nVERSION_ID=117\n", map[string]string{"ID": "cos", "VERSION_ID": "117"}},
		"quotes": {
			"ID='a b'\nPRETTY_NAME=\"say \\\"hi\\\" \\\\ \\$\"\nVERSION_ID=\"\n",
			map[string]string{"ID": "a b", "PRETTY_NAME": `say "hi" \ $`, "VERSION_ID": `"`},
		},
		"nothing": {"# ID=x\n\nNAME\n=\n", nil},
		"long":    {"ID=" + strings.Repeat("x", 1<<20), map[string]string{"ID": strings.Repeat("x", 256) + "…"}},
	} {
		if diff := cmp.Diff(tc.want, parseOSRelease(tc.text)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func FuzzParseOSRelease(f *testing.F) {
	f.Add("ID=\"x\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		for key, value := range parseOSRelease(text) {
			if !slices.Contains(osKeys, key) || len(value) > 260 {
				t.Errorf("%q: %q", key, value)
			}
		}
	})
}

func TestParseModules(t *testing.T) {
	t.Parallel()
	table :=
		"nvidia_uvm 1863680 0 - Live 0x0 (POE)\nnvidia 9891840 2 nvidia_uvm, Live 0x0\nnouveau 1 0 - Live 0x0\next4 1 1 - Live 0x0\nmlx5_core 1 1 - Live 0x0\nib_umad 1 1 - Live 0x0\nvfio_pci 1 1\nnvidia/../x 1\nnvidia\n"
	if diff := cmp.Diff(
		[]string{"nvidia_uvm", "nvidia", "nouveau", "mlx5_core", "ib_umad", "vfio_pci"}, parseModules(table),
	); diff != "" {
		t.Error(diff)
	}
	if got := parseModules(strings.Repeat("nvidia 1\n", 1000)); len(got) != maxModules {
		t.Errorf("%d modules", len(got))
	}
}

func FuzzParseModules(f *testing.F) {
	f.Add("nvidia 9891840 2 nvidia_uvm, Live 0x0\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, name := range parseModules(text) {
			if strings.ContainsAny(name, "/. ") || len(name) > 64 {
				t.Errorf("%q would be a path", name)
			}
		}
	})
}

// bridge returns the configuration space of one whose ACS capability, at 0x148 behind AER, has this control register.
func bridge(control uint16) []byte {
	config := make([]byte, configSpace)
	copy(config, "\x86\x80")
	binary.LittleEndian.PutUint32(config[0x100:], 0x148<<20|1<<16|0x0001)
	binary.LittleEndian.PutUint32(config[0x148:], 0x000<<20|1<<16|0x000d)
	binary.LittleEndian.PutUint16(config[0x148+6:], control)
	return config
}

func TestACSRedirect(t *testing.T) {
	t.Parallel()
	circle := bridge(0)
	binary.LittleEndian.PutUint32(circle[0x100:], 0x100<<20|0x0001)
	gone := []byte(strings.Repeat("\xff", configSpace))
	for name, tc := range map[string]struct {
		config         []byte
		redirect, told bool
	}{
		"on": {bridge(0x1d), true, true}, "off": {bridge(0x11), false, true},
		"no capability": {make([]byte, configSpace), false, true},
		"unprivileged":  {bridge(4)[:64], false, false}, "PCI": {bridge(4)[:256], false, false},
		"cut":      {bridge(4)[:0x14a], false, false},
		"a circle": {circle, false, false}, "gone": {gone, false, false}, "nothing": {nil, false, false},
	} {
		if redirect, told := acsRedirect(tc.config); redirect != tc.redirect || told != tc.told {
			t.Errorf("%s: got %v, %v", name, redirect, told)
		}
	}
}

func FuzzACSRedirect(f *testing.F) {
	f.Add(bridge(4))
	f.Fuzz(func(t *testing.T, config []byte) {
		if redirect, told := acsRedirect(config); redirect && !told {
			t.Error("something is on that is not told")
		}
	})
}

// TestPCI reads a tree as sysfs has it: links from the bus to the devices below their bridges.
func TestPCI(t *testing.T) {
	t.Parallel()
	n := nodetest.New(t)
	device := func(at, address, class string, config []byte, more map[string]string) {
		dir := "/sys/devices/pci0000:00" + at + "/" + address
		n.File(dir+"/vendor", "0x10de\n")
		n.File(dir+"/class", class+"\n")
		n.File(dir+"/device", "0x2330\n")
		n.File(dir+"/config", string(config))
		for name, text := range more {
			n.File(dir+"/"+name, text+"\n")
		}
		n.Link(n.Host.Root+pciDevices+"/"+address, "../../../devices/pci0000:00"+at+"/"+address)
	}
	n.File("/sys/devices/pci0000:00/0000:00:01.0/config", string(bridge(4)))
	n.File("/sys/devices/pci0000:00/0000:00:02.0/config", string(bridge(0)))
	n.File("/sys/devices/pci0000:00/0000:00:03.0/config", string(bridge(4)[:64]))
	device("/0000:00:01.0", "0000:17:00.0", "0x030200", []byte("\xde\x10\x30\x23"), map[string]string{
		"current_link_width": "8", "max_link_width": "16", "current_link_speed": "16.0 GT/s PCIe",
		"max_link_speed": "32.0 GT/s PCIe"})
	n.Link(n.Host.Root+"/sys/devices/pci0000:00/0000:00:01.0/0000:17:00.0/driver", "../../../../bus/pci/drivers/nvidia")
	device("/0000:00:01.0", "0000:17:00.1", "0x040300", nil, nil)
	device("/0000:00:02.0", "0000:18:00.0", "0x068000", []byte("\xff\xff\xff\xff"),
		map[string]string{"current_link_width": "255", "max_link_width": "63", "current_link_speed": "Unknown"})
	device("/0000:00:03.0", "0000:19:00.0", "0x030000", nil, nil)
	n.File(pciDevices+"/0000:20:00.0/vendor", "0x8086\n")
	put, err := diagnosisOf(n, noProgram).pci(t.Context())
	if err == nil || !strings.Contains(err.Error(), "0000:19:00.0: the configuration space is empty") {
		t.Errorf("of a configuration space that cannot be read: %v", err)
	}
	var found api.Diagnosis
	put(&found)
	yes, no := true, false
	want := []api.PCIDevice{
		{
			Address: "0000:17:00.0", Class: "0x030200", Device: "0x2330", Driver: "nvidia", LinkWidth: 8,
			MaxLinkWidth: 16, LinkSpeed: "16.0 GT/s PCIe", MaxLinkSpeed: "32.0 GT/s PCIe", ConfigReadable: true,
			ACSRedirect: &yes,
		},
		{Address: "0000:18:00.0", Class: "0x068000", Device: "0x2330", ACSRedirect: &no},
		{Address: "0000:19:00.0", Class: "0x030000", Device: "0x2330", ConfigReadable: true},
	}
	if diff := cmp.Diff(want, found.Probe.PCI); diff != "" {
		t.Error(diff)
	}
}

const cdiYAML = `---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
- name: all
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
      hostPath: /run/nvidia/driver/dev/nvidia0
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
    args: [nvidia-cdi-hook, "create-symlinks"]
  mounts:
  - hostPath: /usr/lib64/libcuda.so.570.86.15
    containerPath: /usr/lib64/libcuda.so.570.86.15
    options: [ro, nosuid]
`

const cdiJSON = `{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"0","containerEdits":{"deviceNodes":[{"path":"/dev/nvidia0"}]}},
{"name":"all","containerEdits":{"deviceNodes":[{"path":"/dev/nvidia0","hostPath":"/run/nvidia/driver/dev/nvidia0"}]}}],
"containerEdits":{"hooks":[{"path":"/usr/bin/nvidia-cdi-hook"}],"mounts":[{"hostPath":"/usr/lib64/libcuda.so.570.86.15"}]}}`

func TestCDI(t *testing.T) {
	t.Parallel()
	n := nodetest.New(t)
	n.File("/etc/cdi/nvidia.yaml", cdiYAML)
	n.File("/run/cdi/k8s.json", cdiJSON)
	n.Link(n.Host.Root+"/var/run", "/run")
	n.File("/etc/cdi/bad.yaml", "kind: [\n")
	n.File("/etc/cdi/big.yaml", "kind: x\n#"+strings.Repeat("x", maxCDI))
	n.File("/etc/cdi/bomb.yaml", bomb())
	n.File("/etc/cdi/README.txt", "x")
	n.File("/etc/cdi/folder.json/x", "")
	n.File("/usr/bin/nvidia-cdi-hook", "")
	n.File("/dev/nv/0", "")
	n.Link(n.Host.Root+"/dev/nvidia0", "/dev/nv/0") // below the node's root, not ours
	put, err := diagnosisOf(n, noProgram).cdi(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var found api.Diagnosis
	put(&found)
	good := map[string]api.CDISpec{}
	for _, s := range found.Probe.CDI {
		if s.Modified.IsZero() {
			t.Errorf("%s has no time", s.Path)
		}
		good[s.Path] = s
	}
	if len(good) != 6 {
		t.Errorf("specifications: %v", good)
	}
	for _, name := range []string{"/etc/cdi/nvidia.yaml", "/var/run/cdi/k8s.json"} {
		s := good[name]
		if s.Error != "" || s.Kind != "nvidia.com/gpu" || s.DriverVersion != "570.86.15" ||
			!cmp.Equal(s.Devices, []string{"0", "all"}) ||
			!cmp.Equal(s.Missing, []string{"/usr/lib64/libcuda.so.570.86.15", "/run/nvidia/driver/dev/nvidia0"}) {
			t.Errorf("%s: %+v", name, s)
		}
	}
	for _, name := range []string{"bad.yaml", "big.yaml", "bomb.yaml", "folder.json"} {
		if good["/etc/cdi/"+name].Error == "" {
			t.Errorf("%s has no error", name)
		}
	}
}

// bomb returns a billion laughs.
func bomb() string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x]\n")
	for i := range 12 {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i+1, i+1,
			strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i), 9), ","))
	}
	return b.String()
}

func TestCDIBounds(t *testing.T) {
	t.Parallel()
	n := nodetest.New(t)
	var b strings.Builder
	b.WriteString(`{"kind":"` + strings.Repeat("k", 10_000) + `","devices":[`)
	for i := range 10_000 {
		fmt.Fprintf(&b, `{"name":"%d","containerEdits":{"deviceNodes":[{"path":"/dev/x%d"}]}},`, i, i)
	}
	n.File("/etc/cdi/x.json", strings.TrimSuffix(b.String(), ",")+"]}")
	s := readCDI(hostfs.FS(n.Host.Root), "/etc/cdi/x.json")
	if s.Error != "" || len(s.Kind) > 300 || len(s.Devices) != maxCDIDevices || len(s.Missing) != maxMissing {
		t.Errorf("kind of %d bytes, %d devices, %d missing, error %q", len(s.Kind), len(s.Devices), len(s.Missing),
			s.Error)
	}
}

func FuzzParseCDI(f *testing.F) {
	f.Add(cdiYAML)
	f.Add(cdiJSON)
	f.Add(bomb())
	f.Fuzz(func(t *testing.T, text string) {
		spec, err := parseCDI([]byte(text))
		if err != nil {
			return
		}
		if paths := spec.hostPaths(); len(paths) > maxCDIPaths || slices.Contains(paths, "") {
			t.Errorf("%q", paths)
		}
	})
}

// TestDriverPlaces holds that the driver is found where distributions and the operator have it.
func TestDriverPlaces(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"/usr/lib64/libnvidia-ml.so.570.86.15":                             "/",
		"/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libcuda.so.570.86.15": "/run/nvidia/driver",
		"/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.535.104.05":     "/home/kubernetes/bin/nvidia",
		"/usr/local/nvidia/lib64/libnvidia-ml.so.570.86":                   "/usr/local/nvidia",
		"/usr/local/glibc/usr/lib/libnvidia-ml.so.570.86.15":               "/",
		"/usr/lib64/libnvidia-ml.so.1":                                     "",
		"/usr/lib64/libcuda.so":                                            "",
		"/usr/lib64/libcudart.so.12.4.127":                                 "",
		"/opt/other/lib64/libnvidia-ml.so.570.86.15":                       "",
	} {
		n := nodetest.New(t)
		n.File(file, "")
		root, libraries := driverLibraries(hostfs.FS(n.Host.Root))
		if root != want || want != "" && !cmp.Equal(libraries, []string{file}) || want == "" && libraries != nil {
			t.Errorf("%s: got %q, %q", file, root, libraries)
		}
	}
}

// TestModulesAreBounded holds that a folder with no end of files is looked at for a while only.
func TestModulesAreBounded(t *testing.T) {
	t.Parallel()
	n := nodetest.New(t)
	for i := range maxBuilt + 50 {
		n.File(fmt.Sprintf("/lib/modules/k/extra/%d/nvidia.ko", i), "")
	}
	n.File("/lib/modules/k/updates/1/2/3/4/5/nvidia.ko", "") // too deep
	n.File("/lib/modules/k/updates/nvidia-drm.ko.xz", "")
	n.Link(n.Host.Root+"/lib/modules/k/updates/circle", "/lib/modules/k/updates")
	got := builtModules(hostfs.FS(n.Host.Root), "/lib/modules/k")
	if len(got) != maxBuilt || got[0] != "/lib/modules/k/updates/nvidia-drm.ko.xz" {
		t.Errorf("%d modules, the first %s", len(got), got[0])
	}
}

func TestSecureBootAndSELinux(t *testing.T) {
	t.Parallel()
	const variable = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
	for name, tc := range map[string]struct {
		files                     map[string]string
		boot, selinux             string
		bootUnknown, linuxUnknown bool
	}{
		"both on": {
			map[string]string{variable: "\x06\x00\x00\x00\x01", "/sys/fs/selinux/enforce": "1"}, "enabled", "enforcing",
			false, false,
		},
		"both off": {
			map[string]string{variable: "\x06\x00\x00\x00\x00", "/sys/fs/selinux/enforce": "0"}, "disabled",
			"permissive", false, false,
		},
		"a BIOS": {
			map[string]string{"/sys/firmware/acpi/x": "", "/sys/fs/ext4/x": ""}, "disabled", "disabled", false, false,
		},
		"no such": {
			map[string]string{"/sys/firmware/efi/efivars/Boot0000-x": "", "/sys/fs/ext4/x": ""}, "disabled", "disabled",
			false, false,
		},
		"not mounted": {
			map[string]string{"/sys/firmware/efi/runtime": "", "/sys/fs/ext4/x": ""}, "", "disabled", true, false,
		},
		"no sysfs at all": {nil, "", "", true, true},
	} {
		n := nodetest.New(t)
		for file, text := range tc.files {
			n.File(file, text)
		}
		d := diagnosisOf(n, noProgram)
		var found api.Diagnosis
		put, err := d.secureBoot(t.Context())
		put(&found)
		if found.Probe.SecureBoot != tc.boot || (err != nil) != tc.bootUnknown {
			t.Errorf("%s: Secure Boot is %q, %v", name, found.Probe.SecureBoot, err)
		}
		put, err = d.selinux(t.Context())
		put(&found)
		if found.Probe.SELinux != tc.selinux || (err != nil) != tc.linuxUnknown {
			t.Errorf("%s: SELinux is %q, %v", name, found.Probe.SELinux, err)
		}
	}
}

// TestToolkitConfigFollowsHandlers holds that the configuration is that of the programs which the runtime's handlers
// lead to.
func TestToolkitConfigFollowsHandlers(t *testing.T) {
	t.Parallel()
	const operators = "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"
	n := nodetest.New(t)
	n.File("/etc/nvidia-container-runtime/config.toml", "a = 1\n")
	n.File(operators, "b = \"\xff\x01\"\n")
	for program, want := range map[string]string{
		"/usr/local/nvidia/toolkit/nvidia-container-runtime": operators,
		"/usr/bin/nvidia-container-runtime":                  "/etc/nvidia-container-runtime/config.toml",
	} {
		put, err := diagnosisOf(n, noProgram).toolkitConfig(
			api.Runtime{Instance: &api.Instance{Executables: map[string]string{program: ""}}},
		)
		if err != nil {
			t.Fatal(err)
		}
		var found api.Diagnosis
		put(&found)
		if found.Probe.ToolkitConfigPath != want || !utf8.ValidString(found.Probe.ToolkitConfig) ||
			strings.Contains(found.Probe.ToolkitConfig, "\x01") {
			t.Errorf("%s: %s, %q", program, found.Probe.ToolkitConfigPath, found.Probe.ToolkitConfig)
		}
	}
}

// TestToolkitVersionOfScript holds that runc's own version is not taken for the toolkit's.
func TestToolkitVersionOfScript(t *testing.T) {
	t.Parallel()
	n := nodetest.GPU(t)
	if err := os.Remove(n.Host.Root + "/usr/bin/nvidia-ctk"); err != nil {
		t.Fatal(err)
	}
	n.Program("/usr/bin/nvidia-container-runtime")
	d := diagnosisOf(n, noProgram)
	for out, want := range map[string]string{
		"runc version 1.1.5\n":                                 "",
		"NVIDIA Container Runtime version 1.17.4\ncommit: x\n": "NVIDIA Container Runtime version 1.17.4",
	} {
		d.run = func(_ context.Context, c hostexec.Command) (string, error) { return out, nil }
		put, err := d.toolkitVersion(t.Context())
		var found api.Diagnosis
		if put != nil {
			put(&found)
		}
		if found.Probe.ToolkitVersion != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v", out, found.Probe.ToolkitVersion, err)
		}
	}
}

func TestKubeletConfig(t *testing.T) {
	t.Parallel()
	n := nodetest.New(t)
	n.Process(100, 1, "/usr/bin/kubelet", "/usr/bin/kubelet", "--config=/etc/kubelet.yaml", "--cpu-manager-policy",
		"static")
	n.File("/etc/kubelet.yaml",
		"cpuManagerPolicy: none\ntopologyManagerPolicy: \"single-numa-node\" # why\nmemoryManagerPolicy: "+
			strings.Repeat("x", 1000)+"\n")
	kubelet, problem := process.FindKubelet(process.All(n.Host.Proc), n.Host)
	put, err := diagnosisOf(n, noProgram).kubeletConfig(kubelet, problem)
	if err != nil {
		t.Fatal(err)
	}
	var found api.Diagnosis
	put(&found)
	want := map[string]string{
		"cpuManagerPolicy": "static", "topologyManagerPolicy": "single-numa-node",
		"memoryManagerPolicy": strings.Repeat("x", 64) + "…",
	}
	if diff := cmp.Diff(want, found.Probe.KubeletConfig); diff != "" {
		t.Error(diff)
	}
}
