package snapshot

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// words splits a name: NGC_API_KEY, ngc-api-key, ngcAPIKey and ngc.api.key all become ngc, api, key.
func words(name string) []string {
	var b strings.Builder
	runes := []rune(name)
	for i, c := range runes {
		if unicode.IsUpper(c) && i > 0 &&
			(!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			b.WriteByte(' ')
		}
		if !unicode.IsLetter(c) && !unicode.IsDigit(c) {
			c = ' '
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return strings.Fields(b.String())
}

// secretWords returns words that, on their own, mark a name as that of a secret.
func secretWords() []string {
	return []string{
		"token", "password", "passwd", "passphrase", "pwd", "secret", "credential", "apikey", "authorization", "auth",
		"privatekey", "accesskey", "accountkey",
		"webhook", "dockerconfigjson", "dockerconfig", "dockercfg", "dsn", "cookie", "jwt",
	}
}

// isSecretVariable reports whether an environment variable or a flag is secret, by its name. When in doubt, it
// returns true; names that are relevant for GPUs contain none of these words.
func isSecretVariable(name string) bool {
	all := words(name)
	// The location of a secret is not secret.
	if len(all) == 0 || slices.Contains([]string{"file", "path", "dir", "name"}, all[len(all)-1]) {
		return false
	}
	return slices.ContainsFunc(all, func(word string) bool {
		word = strings.TrimSuffix(word, "s")
		return word == "key" ||
			slices.ContainsFunc(secretWords(), func(secret string) bool { return strings.HasSuffix(word, secret) })
	})
}

// isSecretSetting reports whether a key of a configuration is secret, by its name. It excludes keys that doctor
// needs: the key of a toleration, topologyKey, imagePullSecrets, existingSecret.
func isSecretSetting(name string) bool {
	all := words(name)
	if len(all) == 0 {
		return false
	}
	last, before := all[len(all)-1], ""
	if len(all) > 1 {
		before = all[len(all)-2]
	}
	switch {
	case last == "secret" && slices.Contains([]string{"existing", "pull", "tls", "config"}, before):
		// The name of a Secret.
		return false
	case last == "key":
		return slices.Contains([]string{
			"api", "access", "private", "secret", "encryption", "license", "signing", "auth", "ssh", "account",
		}, before)
	case slices.Contains([]string{"url", "uri"}, last):
		return before == "webhook"
	}
	return slices.Contains(secretWords(), last) || last == "credentials" ||
		strings.HasPrefix(strings.Join(all, ""), "dockerconfig")
}

func redactVariable(name, value string) string {
	if value != "" && isSecretVariable(name) {
		return Redacted
	}
	return redactText(value)
}

func redactSetting(name, value string) string {
	if value != "" && isSecretSetting(name) {
		return Redacted
	}
	return redactText(value)
}

// credential is a pattern of strings that look like a credential.
type credential struct {
	// marks are substrings, one of which must occur. They avoid searching most strings.
	marks   []string
	pattern *regexp.Regexp
	with    string
}

// credentials are patterns for registries, clouds, model hubs and code forges.
var credentials = []credential{
	{
		[]string{"PRIVATE KEY-----"},
		regexp.MustCompile(`-----BEGIN ([A-Z ]*)PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\z)`),
		Redacted,
	},
	{[]string{"@"}, regexp.MustCompile(`://[^/\s@"']*:[^/\s@"']*@`), "://" + Redacted + "@"},
	{
		[]string{"earer ", "EARER ", "asic ", "ASIC "},
		regexp.MustCompile(`(?i)\b(bearer|basic) +[A-Za-z0-9._~+/=-]{16,}`), "$1 " + Redacted,
	},
	{[]string{"eyJ"}, regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*`), Redacted},
	{[]string{"AKIA", "ASIA"}, regexp.MustCompile(`\b(?:AKIA|ASIA)[0-9A-Z]{16}\b`), Redacted},
	{[]string{"nvapi-", "hf_", "gh", "sk-", "xox", "glpat-", "AIza"}, regexp.MustCompile(
		`\b(?:nvapi-[A-Za-z0-9_-]{20,}|hf_[A-Za-z0-9]{20,}|gh[oprsu]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|` +
			`sk-[A-Za-z0-9_-]{20,}|xox[abeoprs]-[A-Za-z0-9-]{10,}|glpat-[A-Za-z0-9_-]{16,}|AIza[A-Za-z0-9_-]{30,})`),
		Redacted},
	// Azure's shared access signatures.
	{[]string{"sig="}, regexp.MustCompile(`([?&;"' ]sig=)[^&\s"';]+`), "${1}" + Redacted},
	{[]string{"hooks.slack.com/", "/api/webhooks/", "webhook.office.com/"}, regexp.MustCompile(
		`((?:hooks\.slack\.com/[a-z]+|discord(?:app)?\.com/api/webhooks|webhook\.office\.com)/)[^\s"'<>]+`),
		"${1}" + Redacted},
	{[]string{"uthorization", "UTHORIZATION"}, regexp.MustCompile(
		`(?i)(\b(?:proxy-)?authorization["']?[ \t]*[:=][ \t]*["']?)(?:(?:bearer|basic|token|negotiate|digest|apikey)[ \t]+)?[^\s"',;}{\[\]]+`,
	),
		"${1}" + Redacted},
	// curl -u USER:PASSWORD, docker login -p PASSWORD, sshpass -p PASSWORD
	{
		[]string{"curl", "wget"},
		regexp.MustCompile(
			`(\b(?:curl|wget)\b[^\n|;&]*?[ \t](?:-u|--user|--proxy-user|-U)[ \t=]?["']?)[^\s"':]+:[^\s"']+`,
		),
		"${1}" + Redacted,
	},
	{
		[]string{"mysql", "mariadb", "-p"},
		regexp.MustCompile(`(\b(?:mysql|mariadb)[a-z-]*\b[^\n|;&]*?[ \t"',]-p)[^\s"',|;&]+`), "${1}" + Redacted,
	},
	{
		[]string{"login", "sshpass"},
		regexp.MustCompile(`(\b(?:login\b[^\n|;&]*?[ \t]-p|sshpass[ \t]+-p)[ \t]*["']?)[^\s"']+`), "${1}" + Redacted,
	},
}

// assignment matches a setting in any syntax whose name suggests a secret: token=x, "password": "x", api_key =
// x, --token x.
var assignment = regexp.MustCompile(`(?i)((?:token|passw(?:or)?d|passphrase|secret|credentials?|api[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key|x-amz-signature|[\\"']auth[\\]?)` +
	`[\\]?["']?(?:[ \t]*[:=][ \t]*))(\\?"[^"\n]*"|'[^'\n]*'|[^\s"'&;,(){}\[\]]+)`)

// flag matches a command-line option that is followed by its value.
var flag = regexp.MustCompile(
	`(?i)((?:^|[\s"'])--?(?:[a-z0-9]+[_-])*(?:token|passw(?:or)?d|passphrase|secret|credentials?|api[_-]?key|access[_-]?key|private[_-]?key)[ \t]+)("[^"\n]*"|'[^'\n]*'|[^\s"'-][^\s"']*)`,
)

// redactAssignments redacts values, except words that describe a problem: "token: expired".
func redactAssignments(text string) string {
	return assignment.ReplaceAllStringFunc(text, func(setting string) string {
		parts := assignment.FindStringSubmatch(setting)
		name, value := parts[1], parts[2]
		bare := strings.ToLower(strings.Trim(value, `\"'.`))
		if bare == "" || slices.Contains(harmlessWords(), bare) {
			return setting
		}
		quote := ""
		for _, q := range []string{`\"`, `"`, "'"} {
			if strings.HasPrefix(value, q) {
				quote = q
				break
			}
		}
		return name + quote + Redacted + quote
	})
}

func harmlessWords() []string {
	return []string{
		"true", "false", "null", "none", "nil", "not", "no", "is", "was", "the", "a", "expired", "invalid", "unknown",
		"missing", "cannot", "could", "failed", "error", "unauthorized",
		"forbidden", "denied", "required", "empty", "unexpected", "{}", "[]", "{", "[", strings.ToLower(Redacted),
	}
}

// redactText redacts credentials in a string of any kind.
func redactText(text string) string {
	for _, c := range credentials {
		if slices.ContainsFunc(c.marks, func(mark string) bool { return strings.Contains(text, mark) }) {
			text = c.pattern.ReplaceAllString(text, c.with)
		}
	}
	// Most strings contain none of the marks.
	if !slices.ContainsFunc(secretMarks(), func(mark string) bool { return strings.Contains(text, mark) }) {
		return text
	}
	return flag.ReplaceAllString(redactAssignments(text), "${1}"+Redacted)
}

// secretMarks returns substrings, one of which occurs in each name of a secret.
func secretMarks() []string {
	return []string{
		"oken", "OKEN", "assw", "ASSW", "assphrase", "ASSPHRASE", "ecret", "ECRET", "redential", "REDENTIAL", "key",
		"Key", "KEY", "mz-Sig", "mz-sig", `"auth`, `'auth`, `\"auth`,
	}
}

// registryKey matches a configuration key and value with a registry credential, in TOML, YAML or JSON.
// https://github.com/containerd/containerd/blob/main/docs/cri/registry.md
var registryKey = regexp.MustCompile(`(?im)((?:^|[\s{,."'])["']?(?:[a-z0-9_-]*(?:password|passwd|token|secret|credential|api_?key|private_?key)|auth|username|authorization)["']?[ \t]*[=:][ \t]*)` +
	`("""(?s:.*?)"""|'''(?s:.*?)'''|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\[[^\]{]*\]|[^\s{\["'#,}][^\s#,}]*)`)

// redactConfig redacts credentials in a configuration file, and preserves its lines.
func redactConfig(text string) string {
	text = registryKey.ReplaceAllStringFunc(text, func(setting string) string {
		parts := registryKey.FindStringSubmatch(setting)
		key, value := parts[1], parts[2]
		if value == "true" || value == "false" || value == `""` || value == "''" || value == "[]" || value == "null" {
			return setting
		}
		with := `"` + Redacted + `"`
		if value[0] == '[' {
			with = "[" + with + "]"
		}
		return key + with + strings.Repeat("\n", strings.Count(value, "\n"))
	})
	return redactText(text)
}

// redactJSON redacts registry credentials in containerd's active configuration. It returns nil for invalid
// JSON.
func redactJSON(raw json.RawMessage) json.RawMessage {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var config any
	if decoder.Decode(&config) != nil {
		return nil
	}
	if !redactRegistries(config) {
		return raw
	}
	redacted, err := json.Marshal(config)
	if err != nil {
		return nil
	}
	return redacted
}

// redactRegistries redacts a tree in place, and reports whether it changed.
func redactRegistries(tree any) (changed bool) {
	switch v := tree.(type) {
	case []any:
		for _, inner := range v {
			changed = redactRegistries(inner) || changed
		}
	case map[string]any:
		for key, inner := range v {
			switch strings.ToLower(key) {
			case "auth", "password", "identitytoken", "identity_token", "registrytoken", "username", "authorization":
				if !isEmpty(inner) {
					if _, nested := inner.(map[string]any); !nested {
						v[key], changed = Redacted, changed || inner != Redacted
						continue
					}
				}
			}
			if text, ok := inner.(string); ok {
				if redacted := redactText(text); redacted != text {
					v[key], changed = redacted, true
				}
				continue
			}
			changed = redactRegistries(inner) || changed
		}
	}
	return changed
}

func isEmpty(value any) bool {
	list, isList := value.([]any)
	return value == nil || value == "" || isList && len(list) == 0
}
