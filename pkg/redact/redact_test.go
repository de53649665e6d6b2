package redact

import (
	"strings"
	"testing"
)

const jwt = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzZWNyZXQifQ.c2lnbmF0dXJl"

// Secrets stand in texts in many forms, and none may come through; what says why something fails must.
func TestSecretsInTexts(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"token":"hush"}`, `{\"token\":\"hush\"}`, "password: hush", "password = 'hush x'",
		`sh -c "train --password hush --epochs 3"`, "run --api-key hush", "run --db-password=hush",
		"--registry-token hush",
		"curl -u me:hush https://r", "mysql -uroot -phush", `"mysqldump","-u","me","-phush"`,
		"mariadb-admin -h db -phush ping", "curl -s --user me:hush https://r",
		"docker login -u me -p hush r.example.com", "Authorization: token hush", "authorization: hush",
		`"Authorization": "Basic hush"`, "X-Api-Key: hush",
		"aws_secret_access_key = hush", "swift -U me -K hush list", `{"auths":{"r":{"auth":"hush"}}}`,
		"DefaultEndpointsProtocol=https;AccountKey=hush;x", "https://a.blob.core.windows.net/c?sv=1&sig=hush&x=1",
		"https://hooks.slack.com/services/T0/B0/hush", "https://x.webhook.office.com/webhookb2/hush",
		"AZURE_CLIENT_SECRET=hush", "hf-token: hush", "GET /callback?code=hush1hush2hush3hush4&state=1",
		"GET /callback?code=M.C1_BAY!hush*hush(hush",
	} {
		once := Text(text)
		if strings.Contains(once, "hush") || !strings.Contains(once, Mark) {
			t.Errorf("%q became %q", text, once)
		}
		if twice := Text(once); twice != once {
			t.Errorf("%q became %q, and that %q", text, once, twice)
		}
	}
	for _, text := range []string{
		`MountVolume.SetUp failed for volume "x": secret "y" not found`, "token: expired",
		"invalid token: unauthorized", "tokenizer: llama", "--token-file /var/run/token",
		"NVRM: Xid (PCI:0000:17:00): 79, pid=1", "kubectl -n x get secret y", "--mig-strategy single",
		"key: nvidia.com/gpu", "BinaryName = \"/usr/bin/nvidia-container-runtime\"", "curl -u", "author: me",
		"mysql -uroot -p", "python train.py -profile",
		"unauthorized: authentication required", "imagePullSecrets: [ngc]",
		"CUDA error at a.cu:1 code=805(cudaErrorMpsConnectionFailed)", "Main process exited, code=exited, status=1",
	} {
		if got := Text(text); got != text {
			t.Errorf("%q became %q, though there is no secret in it", text, got)
		}
	}
	for _, name := range []string{
		"dockerconfigjson", ".dockerconfigjson", "dockerConfigJson", "webhookUrl", "slackWebhookURL", "auth",
		"registryAuth",
	} {
		if Setting(name, "hush") != Mark {
			t.Errorf("Helm's value %s is not taken for a secret", name)
		}
	}
}

// Findings quote lines of configuration files by number.
// Doctor recognizes these messages in a bundle.
func TestCommonMessagesRemain(t *testing.T) {
	t.Parallel()
	for _, message := range []string{
		`failed to call webhook: Post "https://admission.team.svc:443/mutate": context deadline exceeded`,
		"requests.exceptions.HTTPError: Invalid user token. The token from HF_TOKEN environment variable is invalid.",
	} {
		if got := Text(message); got != message {
			t.Errorf("%q became %q", message, got)
		}
	}
	for _, rest := range []string{" from 10.0.0.7 port 22", " [preauth]", "", "\nnext line"} {
		if got, want := Text("Invalid user Hush1"+rest), "Invalid user REDACTED"+rest; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestMarkFilesKeepTheirLines(t *testing.T) {
	t.Parallel()
	for _, harmless := range []string{
		"[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.nvidia.options]\n  BinaryName = \"/usr/bin/nvidia-container-runtime\"\n  SystemdCgroup = true\n",
		"disable_token = true\nauth = \"\"\n",
		"no-cgroups = false\n#accept-nvidia-visible-devices-envvar-when-unprivileged = true\n",
		"version: v1\nflags:\n  migStrategy: none\nauthentication:\n  x509: {}\n",
		"config_path = \"/etc/containerd/certs.d\"\n",
	} {
		if got := Config(harmless); got != harmless {
			t.Errorf("%q became %q", harmless, got)
		}
	}
}

func TestSecretNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"NGC_API_KEY", "TOKEN", "hfToken", "AWS_SECRET_ACCESS_KEY", "db-password", "PGPASSWORD", "GOOGLE_CREDENTIALS",
		"sshPrivateKey", "ENCRYPTION_KEY",
	} {
		if !SecretName(name) {
			t.Errorf("the variable %s holds a secret", name)
		}
	}
	for _, name := range []string{
		"NVIDIA_VISIBLE_DEVICES", "CONTAINERD_CONFIG", "RUNTIME_CONFIG_SOURCE", "MIG_STRATEGY", "KEYBOARD", "MONKEY",
		"SECRET_NAME", "TOKEN_PATH", "", "_",
	} {
		if SecretName(name) {
			t.Errorf("the variable %s holds no secret", name)
		}
	}
	for _, name := range []string{
		"key", "topologyKey", "imagePullSecrets", "existingSecret", "secretName", "env", "tokenFile",
	} {
		if SecretName(name) {
			t.Errorf("the setting %s holds no secret", name)
		}
	}
	for _, name := range []string{"apiKey", "password", "clientSecret", "accessToken", "ngcAPIKey"} {
		if !SecretName(name) {
			t.Errorf("the setting %s holds a secret", name)
		}
	}
}

// Redaction reads texts of strangers.
func FuzzRedact(f *testing.F) {
	f.Add("auth = \"\"\"\nx\n\"\"\"\npassword: y\nhttps://a:b@c " + jwt)
	f.Add(`{"auth":{"auth":["x"]}}`)
	f.Add(`, auth":#00000000000&00`)
	f.Fuzz(func(t *testing.T, text string) {
		once := Config(text)
		if strings.Count(once, "\n") < strings.Count(text, "\n") && !strings.Contains(text, "PRIVATE KEY") {
			t.Fatalf("%q lost lines: %q", text, once)
		}
		if twice := Config(once); twice != once {
			t.Fatalf("%q became %q, and that %q", text, once, twice)
		}
		SecretName(text)
	})
}

// The table of formats is part of the program.
func TestFormats(t *testing.T) {
	t.Parallel()
	all, err := readFormats()
	if err != nil || len(all) < 200 {
		t.Fatalf("%d formats: %v", len(all), err)
	}
	for _, f := range all {
		if p := f.pattern(); p.NumSubexp() < f.group {
			t.Errorf("%s has no group %d", f.source, f.group)
		}
		for _, word := range f.keywords {
			if len(word) < 2 || word != strings.ToLower(word) {
				t.Errorf("%s: keyword %q is too short, or not in lower case", f.source, word)
			}
		}
	}
}
