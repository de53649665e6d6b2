package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"go.yaml.in/yaml/v3"

	"github.com/gpu-fault/kubectl-gpu-fault/test/peers"
)

// Paths of NVSentinel's source, and on the node.
const (
	charts     = "distros/kubernetes/nvsentinel/charts"
	configDir  = "/etc/nvsentinel"
	accountDir = "/var/run/secrets/kubernetes.io/serviceaccount"
	stateFile  = "/var/run/syslog_monitor/state.json"
)

// values are the values of a chart.
type values = map[string]any

// programs are those of NVSentinel, in the order in which they start. Each is ready when its log contains ready: what
// happened before, it ignores.
var programs = []struct {
	name, ready string
	args        []string
}{
	{"fault-quarantine", "Listening for events", []string{
		"--config-path=" + configDir + "/fault-quarantine.toml", "--tls-enabled=false", "--metrics-port=2112",
	}},
	{"node-drainer", "All components started", []string{
		"--config-path=" + configDir + "/node-drainer.toml", "--tls-enabled=false", "--metrics-port=2113",
	}},
	{"fault-remediation", "reconciler registered", []string{
		"--config-path=" + configDir + "/fault-remediation.toml", "--metrics-address=0", "--health-address=0",
	}},
	{"platform-connectors", "gRPC server listener", []string{
		"--config=" + configDir + "/connectors.json", "--socket=/var/run/nvsentinel.sock", "--tls-enabled=false",
		"--metrics-port=2114",
	}},
	{"syslog-health-monitor", "", []string{"--polling-interval=1s", "--metrics-port=2115"}}, // 15s in the chart
}

// startNVSentinel starts its programs as processes of the node, which believe that they are in a pod.
func (p *peer) startNVSentinel(ctx context.Context) error {
	if err := p.onNode(ctx, nil, "test", "-d", "/var/log/journal"); err != nil {
		return fmt.Errorf("the node has no persistent journal; start the cluster with JOURNALD=persistent: %w", err)
	}
	for _, args := range [][]string{
		{"apply", "-f", "test/peers/nvsentinel/cluster.yaml"},
		{"apply", "-f", filepath.Join(p.source, charts, "janitor", "crds")},
	} {
		if _, err := p.Kubectl(ctx, nil, args...); err != nil {
			return err
		}
	}
	if err := p.configure(ctx); err != nil {
		return fmt.Errorf("configure NVSentinel: %w", err)
	}
	for _, program := range programs {
		if err := p.startProgram(ctx, program.name, program.args...); err != nil {
			return err
		}
		if err := peers.Until(ctx, program.name, func() error {
			return p.logHas(program.name, program.ready)
		}); err != nil {
			return err
		}
	}
	// The first poll of the monitor only finds the end of the journal.
	return peers.Until(ctx, "syslog-health-monitor", func() error {
		return p.onNode(ctx, nil, "grep", "-q", "SysLogsXIDError", stateFile)
	})
}

// startProgram copies a program to the node and starts it.
func (p *peer) startProgram(ctx context.Context, name string, args ...string) error {
	binary, err := os.Open(filepath.Join(p.programs, name))
	if err != nil {
		return err
	}
	defer func() { _ = binary.Close() }()
	path := "/usr/local/bin/" + name
	if err := p.put(ctx, path, binary); err != nil {
		return err
	}
	return p.start(p.nodeCommand(ctx, append([]string{
		"env", "DATASTORE_PROVIDER=postgresql", "DATASTORE_HOST=" + p.host, "DATASTORE_PORT=" + databasePort,
		"DATASTORE_DATABASE=" + database, "DATASTORE_USERNAME=" + database, "DATASTORE_SSLMODE=disable",
		"MONGODB_DATABASE_NAME=" + database, "MONGODB_COLLECTION_NAME=HealthEvents",
		"MONGODB_TOKEN_COLLECTION_NAME=ResumeTokens", "POD_NAMESPACE=nvsentinel", "NODE_NAME=" + faulty,
		"KUBERNETES_SERVICE_HOST=10.96.0.1", "KUBERNETES_SERVICE_PORT=443", path,
	}, args...)...), name)
}

// configure writes what the programs read on the node.
func (p *peer) configure(ctx context.Context) error {
	files, err := p.chartFiles()
	if err != nil {
		return err
	}
	token, err := p.Kubectl(ctx, nil, "create", "token", "nvsentinel", "-n", "nvsentinel", "--duration=2h")
	if err != nil {
		return err
	}
	authority, err := os.ReadFile(filepath.Join(p.State, "pki", "ca.crt"))
	if err != nil {
		return err
	}
	driver, err := peers.Output(p.nodeCommand(ctx, "nvidia-smi", "-i", "0", "--query-gpu=driver_version",
		"--format=csv,noheader"))
	if err != nil {
		return err
	}
	metadata, err := json.Marshal(values{
		"version": "1.0", "node_name": faulty, "driver_version": strings.TrimSpace(string(driver)),
		"gpus": []values{{"gpu_id": 0, "uuid": p.gpu.UUID, "pci_address": p.gpu.PCI + ".0"}},
	})
	if err != nil {
		return err
	}
	files[accountDir+"/token"] = bytes.TrimSpace(token)
	files[accountDir+"/ca.crt"] = authority
	files["/var/lib/nvsentinel/gpu_metadata.json"] = metadata
	// The rate needs a decimal point. Since August 2026, the connectors verify the tokens of pods; these programs are
	// processes.
	files[configDir+"/connectors.json"] = []byte(`{
		"enableK8sPlatformConnector": "true", "K8sConnectorQps": 5.00, "K8sConnectorBurst": 10,
		"MaxNodeConditionMessageLength": 1024, "CompactedHealthEventMsgLen": 72,
		"enableNodeBindingAuth": "false", "StoreConnectorMaxRetries": 3, "enablePostgresDBStorePlatformConnector": "true",
		"pipeline": [{
			"name": "OverrideTransformer", "enabled": true, "config": "` + configDir + `/overrides.toml"
		}]
	}`)
	// Other clusters of the machine write to the same kernel log: what is not about this GPU is not fatal.
	files[configDir+"/overrides.toml"], err = toml.Marshal(values{"enabled": true, "rules": []values{{
		"name": "other clusters", "override": values{"isFatal": false},
		"when": fmt.Sprintf("!event.isHealthy && !event.message.contains(%q)", p.gpu.PCI),
	}}})
	if err != nil {
		return err
	}
	for file, text := range files {
		if err := p.put(ctx, file, bytes.NewReader(text)); err != nil {
			return err
		}
	}
	// The monitor expects the node's files in /nvsentinel.
	return p.onNode(ctx, nil, "sh", "-c", "ln -sfn / /nvsentinel && mkdir -p "+filepath.Dir(stateFile))
}

// chartFiles returns configuration files with the values of the charts, except that pods are evicted at once: by
// default, NVSentinel waits until they complete.
func (p *peer) chartFiles() (map[string][]byte, error) {
	all := map[string]values{}
	for _, name := range []string{"fault-quarantine", "node-drainer", "fault-remediation"} {
		text, err := os.ReadFile(filepath.Join(p.source, charts, name, "values.yaml"))
		if err != nil {
			return nil, err
		}
		v := values{}
		if err := yaml.Unmarshal(text, &v); err != nil {
			return nil, fmt.Errorf("values of %s: %w", name, err)
		}
		all[name] = v
	}
	quarantine, drainer, remediation := all["fault-quarantine"], all["node-drainer"], all["fault-remediation"]
	maintenance, _ := remediation["maintenance"].(values)
	templates, _ := maintenance["templates"].(values)
	delete(drainer, "customDrain") // disabled, and not in the form that the program reads
	drainer["userNamespaces"] = []values{{"name": "*", "mode": "Immediate"}}
	files := map[string][]byte{}
	for name, text := range templates {
		files[configDir+"/"+name] = []byte(fmt.Sprint(text))
	}
	for program, config := range map[string]values{
		"fault-quarantine": {
			"label-prefix": quarantine["labelPrefix"], "circuitBreaker": quarantine["circuitBreaker"],
			"rule-sets": quarantine["ruleSets"],
		},
		"node-drainer": drainer,
		"fault-remediation": {
			"template":           values{"mountPath": configDir},
			"remediationActions": maintenance["actions"], "updateRetry": remediation["updateRetry"],
		},
	} {
		text, err := toml.Marshal(config)
		if err != nil {
			return nil, fmt.Errorf("configuration of %s: %w", program, err)
		}
		files[configDir+"/"+program+".toml"] = text
	}
	return files, nil
}

// put writes a file of the node, which may be a program.
func (p *peer) put(ctx context.Context, file string, text io.Reader) error {
	return p.onNode(ctx, text, "sh", "-c", "mkdir -p "+filepath.Dir(file)+" && cat >"+file+" && chmod 755 "+file)
}

// nodeCommand returns a command that runs on the node.
func (p *peer) nodeCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "test/cluster/node", append([]string{"sh", faulty}, args...)...)
	cmd.Env = append(os.Environ(), "STATE="+p.State)
	return cmd
}

// onNode runs a command on the node.
func (p *peer) onNode(ctx context.Context, stdin io.Reader, args ...string) error {
	cmd := p.nodeCommand(ctx, args...)
	cmd.Stdin = stdin
	_, err := peers.Output(cmd)
	return err
}

// start starts a program whose output goes to a log. It runs until its context ends, or the cluster is taken down.
func (p *peer) start(cmd *exec.Cmd, name string) error {
	log, err := os.Create(p.log(name))
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	p.running.Go(func() {
		_ = cmd.Wait()
		_ = log.Close()
	})
	return nil
}

func (p *peer) log(name string) string { return filepath.Join(p.work, name+".log") }

// logHas returns an error if the log of a program does not contain a text.
func (p *peer) logHas(name, text string) error {
	log, err := os.ReadFile(p.log(name))
	if err != nil {
		return err
	}
	if !bytes.Contains(log, []byte(text)) {
		lines := strings.Split(strings.TrimSpace(string(log)), "\n")
		return fmt.Errorf("its log does not contain %q; the last line is %s", text, lines[len(lines)-1])
	}
	return nil
}
