package redact

import (
	"regexp"
	"strings"
)

// arguments match commands that take a secret as an argument, although no name indicates that the argument is a secret.
// The first group is the secret.
var arguments = []struct {
	mark    string // in lower case
	pattern *regexp.Regexp
}{
	{
		"curl",
		regexp.MustCompile(
			`\bcurl\b[^\n|;&]*?[ \t"',](?:-[A-Za-z]*[uUE]|--user|--proxy-user|--cert)["',]*[ \t=,]*["']*([^\s"']+:[^\s"']+)`,
		),
	},
	{"curl", regexp.MustCompile(`\bcurl\b[^\n|;&]*?[ \t](?:-b|--cookie)[ \t=]*["']?([^\s"']+)`)},
	{"wget", regexp.MustCompile(`\bwget\b[^\n|;&]*?[ \t"',](?:--user|--http-user)[ \t=]*["']?([^\s"']+:[^\s"']+)`)},
	{"mysql", regexp.MustCompile(`\bmysql[a-z-]*\b[^\n|;&]*?[ \t"',]-p('[^'\n]*'|"[^"\n]*"|[^\s"',|;&]+)`)},
	{"mariadb", regexp.MustCompile(`\bmariadb[a-z-]*\b[^\n|;&]*?[ \t"',]-p([^\s"',|;&]+)`)},
	{"mongo", regexp.MustCompile(`\bmongo[a-z]*\b[^\n|;&]*?[ \t"',]-p["',]*[ \t]*["']?([^\s"',|;&]+)`)},
	{"redis-cli", regexp.MustCompile(`\bredis-cli\b[^\n|;&]*?[ \t"',]-a["',]*[ \t]*["']?([^\s"',|;&]+)`)},
	{"ldap", regexp.MustCompile(`\bldap[a-z]+\b[^\n|;&]*?[ \t"',]-w["',]*[ \t]*["']?([^\s"',|;&]+)`)},
	{
		"smbclient",
		regexp.MustCompile(`\b(?:smbclient|mount\.cifs|net)\b[^\n|;&]*?[ \t]-U[ \t]*["']?[^\s%"']+%([^\s"']+)`),
	},
	{"swift", regexp.MustCompile(`\bswift\b[^\n|;&]*?[ \t"',]-K["',]*[ \t]*["']?([^\s"',|;&]+)`)},
	{"sshpass", regexp.MustCompile(`\bsshpass[ \t"',]+-p["',]*[ \t]*["']?([^\s"']+)`)},
	{"login", regexp.MustCompile(`\blogin\b[^\n|;&]*?[ \t"',]-p["',]*[ \t=]*["']?([^\s"']+)`)},
	{
		"wandb",
		regexp.MustCompile(`\bwandb[ \t"',]+login["',]*(?:[ \t]+--[\w-]+(?:=\S+)?)*[ \t]+["']?([A-Za-z0-9]{12,})`),
	},
	{
		"vault",
		regexp.MustCompile(`\bvault[ \t"',]+login["',]*(?:[ \t]+-[\w-]+(?:=\S+)?)*[ \t]+["']?([^\s"'-][^\s"']+)`),
	},
	{
		"htpasswd",
		regexp.MustCompile(`\bhtpasswd[ \t]+-[A-Za-z]*b[A-Za-z]*(?:[ \t]+[^\s"']+){2}[ \t]+["']?([^\s"']+)`),
	},
	{"snmp", regexp.MustCompile(`\bsnmp[a-z]+\b[^\n|;&]*?[ \t]-c[ \t]*["']?([^\s"']+)`)},
	{"snmp", regexp.MustCompile(`\bsnmp[a-z]+\b[^\n|;&]*?[ \t]-A[ \t]*["']?([^\s"']+)`)},
	{"snmp", regexp.MustCompile(`\bsnmp[a-z]+\b[^\n|;&]*?[ \t]-X[ \t]*["']?([^\s"']+)`)},
	{"storepass", regexp.MustCompile(`-(?:store|key|srcstore|deststore|srckey|destkey)pass[ \t]+["']?([^\s"']+)`)},
	{"mot de passe", regexp.MustCompile(`(?i)\bmot de passe[ \t]*[:=][ \t]*(\S+)`)},
	{"<(", regexp.MustCompile(`<\([ \t]*(?:echo|printf)[ \t]+["']?([^\s"')]+)`)},
	{"suseconnect", regexp.MustCompile(`\bSUSEConnect\b[^\n|;&]*?[ \t]-r[ \t]*["']?([^\s"']+)`)},
	{
		"%s",
		regexp.MustCompile(
			`\bprintf[ \t]+["'][^"'\n]*(?:password|token|secret|` + Mark +
				`)[ \t]+%s[^"'\n]*["'][ \t]+["']?([^\s"';|&]+)`,
		),
	},
	{"-restricted-", regexp.MustCompile(`-restricted-(?:protocol|api)[= ]["']?[^\s=]+=([^\s"',;]+)`)},
	{"chpasswd", regexp.MustCompile(`\bchpasswd\b[^\n|]*?[ \t][\w.-]+:([^\s"']+)`)},
	{" -u", regexp.MustCompile(`[ \t]-u[ \t]*["']?[A-Za-z][\w.-]*:([^\s"':/@]*[A-Za-z][^\s"':/@]*)`)},
	{"jdbc:oracle", regexp.MustCompile(`\bjdbc:oracle:\w+:[^\s/@]+/([^\s@"']+)@`)},
	{"proxy_set_header", regexp.MustCompile(
		`(?i)\bproxy_set_header[ \t]+[\w-]*(?:key|auth|token|secret|cookie)[\w-]*[ \t]+["']?([^\s"';]+)`)},
	// Exceptions and assertions from programs.
	{"integer value", regexp.MustCompile(`to integer value as '([^'@\n]+)@`)},
	{"input_value", regexp.MustCompile(`\binput_value=('[^'\n]*'|"[^"\n]*")`)},
	{"auth", regexp.MustCompile(`\bauth[ \t]*=[ \t]*\([ \t]*["'][^"'\n]*["'][ \t]*,[ \t]*["']([^"'\n]+)`)},
	{
		"value",
		regexp.MustCompile(
			`(?i)\bvalue \\?["']([^"'\\\n]+)\\?["'] (?:for|of) [\w.-]*(?:password|passwd|token|secret|key|pwd)\b`,
		),
	},
	// Tables, aligned columns and colors.
	{"|", regexp.MustCompile(
		`(?i)\|[ \t]*[\w.-]*(?:passw\w*|token|secret|api_?key|credential|pwd)[ \t]*\|[ \t]*([^\s|][^|\n]*?)[ \t]*\|`,
	)},
	{
		"..",
		regexp.MustCompile(
			`(?i)\b(?:[\w-]*passw\w*|[\w-]*token|[\w-]*secret|api[ _-]?key|pwd)[ \t]*\.{3,}[ \t]*(\S+)`,
		),
	},
	{"pass", aligned}, {"token", aligned}, {"secret", aligned}, {"key", aligned},
	{"\x1b[", regexp.MustCompile(
		`(?i)(?:password|passwd|token|secret|key)(?:\x1b\[[\d;]*m)*[ \t]*[=:][ \t]*(?:\x1b\[[\d;]*m)+([^\s\x1b]+)`)},
	{"<name>", regexp.MustCompile(
		`(?i)<name>[^<\n]*(?:password|passwd|secret|token|apikey|pwd)[^<\n]*</name>\s*<value>([^<\n]+)`)},
	// A user and a password in a note: root / Password#1.
	{"root", pair}, {"admin", pair}, {"user", pair},
	{"pass:", regexp.MustCompile(`\bpass:([^\s"']+)`)},
	{
		"chpasswd",
		regexp.MustCompile(`\becho[ \t]+["']?[\w.-]+:([^\s"'|]+)["']?[ \t]*\|[ \t]*(?:sudo[ \t]+)?chpasswd`),
	},
	{
		"-p",
		regexp.MustCompile(
			`\b(?:ipmi[a-z]+|zip|unzip|7z|smbclient|sqlcmd|xfreerdp)\b[^\n|;&]*?[ \t"',]-[pP]["',]*[ \t]*["']?([^\s"',|;&]+)`,
		),
	},
	{
		"mc alias",
		regexp.MustCompile(
			`\bmc[ \t]+(?:alias[ \t]+set|config[ \t]+host[ \t]+add)(?:[ \t]+[^\s"']+){3}[ \t]+["']?([^\s"']+)`,
		),
	},
	{"mc admin", regexp.MustCompile(`\bmc[ \t]+admin[ \t]+user[ \t]+add(?:[ \t]+[^\s"']+){2}[ \t]+["']?([^\s"']+)`)},
	{
		"auth",
		regexp.MustCompile(`\bAUTH[ \t]+(?:[\w.-]+[ \t]+)?("[^"\n]+"|'[^'\n]+'|[^\s"']*[0-9!#$%^&*+~][^\s"']*)`),
	}, // Redis
	{"lftp", regexp.MustCompile(`\blftp\b[^\n|;&]*?[ \t]-u[ \t]*["']?[^\s,"']+,([^\s"']+)`)},
	{"%", regexp.MustCompile(`[ \t]-U[ \t]*["']?[^\s%"']+%([^\s"']+)`)},
	{" -w", regexp.MustCompile(`\b(?:ipa-[a-z-]+|kadmin|kinit|radtest)\b[^\n|;&]*?[ \t]-w[ \t]*["']?([^\s"']+)`)},
	{"rootpw", regexp.MustCompile(`\brootpw[ \t]+(?:--\w+[ \t]+)*["']?([^\s"'-][^\s"']*)`)},
	{"wpa", regexp.MustCompile(`\bwpa_passphrase[ \t]+["']?[^\s"']+["']?[ \t]+["']?([^\s"']+)`)},
	{"iscsi:", regexp.MustCompile(`\biscsi:([^\s@"']+)@`)},
	{
		"invalid user",
		regexp.MustCompile(`(?m)\b[Ii]nvalid user ([^\s"']*[^\s"'.])(?: (?:from|port|\[)|$)`),
	}, // a password that was typed at the wrong prompt
	{"createuser", regexp.MustCompile(`\bcreateUser[ \t]+\S+[ \t]+\w+[ \t]+("[^"\n]+"|\S+)`)},
	{
		"createuser",
		regexp.MustCompile(`\bcreateUser[ \t]+\S+[ \t]+\w+[ \t]+(?:"[^"\n]+"|\S+)[ \t]+\w+[ \t]+("[^"\n]+"|\S+)`),
	},
	{"community", regexp.MustCompile(`(?m)\b(?:r[ow])?community6?[ \t]+([^\s"']+)`)},
	{"-server", regexp.MustCompile(`\b(?:radius|tacacs)-server[^\n]*?[ \t]key[ \t]+(?:\d[ \t]+)?([^\s"']+)`)},
	{"requirepass", regexp.MustCompile(`\b(?:requirepass|masterauth)[ \t]+["']?([^\s"']+)`)},
	{"list:", regexp.MustCompile(`\bchpasswd:[ \t]*\{[^}\n]*?list:[ \t]*("[^"\n]*"|\|[^}\n]*)`)},
	{":", regexp.MustCompile(`(?m)^[ \t]*[\w.*-]+:(?:\d+|\*):[^:\s]+:[^:\s]+:(\S[^\n]*)$`)}, // .pgpass
	{"otp", regexp.MustCompile(`(?i)\b(?:t?otp|2fa|mfa|passcode)\b[^\n]{0,24}?\b(\d{3} ?\d{3})\b`)},
	{
		"code",
		regexp.MustCompile(
			`(?i)\b(?:passcode|(?:verification|recovery|backup|sms) code)\b[^\n]{0,40}?\b(\d{3} ?\d{3})\b`,
		),
	},
	{"tailscale", regexp.MustCompile(`\blogin\.tailscale\.com/(?:a|admin)/([A-Za-z0-9]+)`)},
	{"/t/", regexp.MustCompile(`://[^\s"'/]+/t/([\w-]{12,})/`)}, // conda channels
	{
		" codes",
		regexp.MustCompile(`(?i)\b(?:recovery|backup|scratch) codes[^\n:]{0,40}[: ]+([A-Z0-9][A-Z0-9, -]{6,})`),
	},
	{"read -s", regexp.MustCompile(`\bread -s[^\n#]*#[ \t]*([^\n]+)`)},
	{" -p", regexp.MustCompile(`(?:^|[ \t])-U[ \t]*\S+[ \t]+-[Pp][ \t]*["']?([^\s"']+)`)},
	{"splunk", regexp.MustCompile(`(?i)splunk[^\n]{0,24}?([0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})`)},
	{
		"feature",
		regexp.MustCompile(`(?m)^[ \t]*(?:FEATURE|INCREMENT)[ \t][^\n]*?[ \t]([0-9A-F]{12,20})(?:[ \t]|$)`),
	}, // FlexLM
	{"pass phrase", regexp.MustCompile(`(?im)\bpass phrase[ \t]*[:=][ \t]*([^\n]+)`)},
	{"<<<", regexp.MustCompile(`<<<[ \t]*("[^"\n]*"|'[^'\n]*'|[^\s"']+)`)},
	{"sign", regexp.MustCompile(`\bSIGN\d?="([^"]+)`)},
	{
		"-stdin",
		regexp.MustCompile(
			`\b(?:echo|printf)[ \t]+(?:-n[ \t]+)?(?:["']?%s["']?[ \t]+)?("[^"\n]+"|'[^'\n]+'|[^\s"'|$]+)[ \t]*\|[^\n|]*--password-stdin`,
		),
	},
	{"identified", regexp.MustCompile(`(?i)\bidentified[ \t]+(?:with[ \t]+\w+[ \t]+)?by[ \t]+["']([^"'\n]+)`)},
	{"password", regexp.MustCompile(`(?i)\bpassword[ \t]+'([^'\n]+)'`)}, // SQL
	// In a sentence or a dialogue, the name of the secret is followed by a word that is not ordinary.
	{
		"pass",
		regexp.MustCompile(
			`(?i)\b(?:pass(?:word|wd|phrase|code|wort)?|kennwort|pwd)[ \t]+(?:is[ \t]+|was[ \t]+|to[ \t]+)?("[^"\n]+"|'[^'\n]+'|` +
				`[^\s"'=:]*[0-9#!$%^*+~][^\s"']*)`,
		),
	},
	{"pass", sentence}, {"kennwort", sentence}, {"secret", sentence}, {"psk", sentence}, {"token", sentence},
	{"token", rejected}, {"wort", rejected}, {"password", rejected},
	{
		"</",
		regexp.MustCompile(
			`(?i)<[\w:.-]*(?:password|passwd|passphrase|secret|token|apikey|api-key|credential|pwd)[\w:.-]*>([^<\n]+)</`,
		),
	},
	{
		"value",
		regexp.MustCompile(
			`(?i)["'](?:name|key)["'][ \t]*:[ \t]*["'][^"'\n]*(?:password|passwd|passphrase|secret|token|api_?key|credential|pwd|_pw|_pass)["'][ \t]*,\s*["']value["'][ \t]*:[ \t]*("(?:[^"\\\n]|\\.)*"|'[^'\n]*')`,
		),
	},
	// Oracle: user/password@database.
	{
		"/",
		regexp.MustCompile(
			`(?i)\b(?:sqlplus|expdp|impdp|rman|sqlldr|connect|target)[ \t]+(?:-\S+[ \t]+)*["']?[\w.$#]+/("[^"\n]+"|[^\s@"'/]+)`,
		),
	},
	{"identified", regexp.MustCompile(`(?i)\bidentified[ \t]+by[ \t]+([^\s"';]+)`)},
	{
		"echo",
		regexp.MustCompile(
			`\becho[ \t]+(?:-n[ \t]+)?("[^"\n]+"|'[^'\n]+'|[^\s"'|$]+)[ \t]*\|[ \t]*(?:sudo[ \t]+-S|kinit|p4|su\b|gpg|cryptsetup|smbpasswd|passwd)`,
		),
	},
	{"openssl", regexp.MustCompile(`\bopenssl\b[^\n|;&]*?[ \t]-k[ \t]+["']?([^\s"']+)`)},
	{"p4", regexp.MustCompile(`\bp4\b[^\n|;&]*?[ \t]-P[ \t]*["']?([^\s"']+)`)},
	{"+login", regexp.MustCompile(`\+login[ \t]+[^\s"']+[ \t]+["']?([^\s"'+]+)`)},
	{"+login", regexp.MustCompile(`\+login(?:[ \t]+[^\s"'+]+){2}[ \t]+["']?([^\s"'+]+)`)},
	{
		" -p",
		regexp.MustCompile(
			`\b(?:supabase|signtool|influx|cbq|clickhouse-client|cypher-shell)\b[^\n|;&]*?[ \t]-p[ \t]+["']?([^\s"']+)`,
		),
	},
	{" /", regexp.MustCompile(`(?i)\b(?:signtool|schtasks|net[ \t]+use)\b[^\n]*?[ \t]/r?p[ \t:]+["']?([^\s"']+)`)},
	{"psk", regexp.MustCompile(`\b(?:wifi-sec\.)?psk[ \t]+["']?([^\s"']+)`)},
	{
		"value=",
		regexp.MustCompile(
			`(?i)\b(?:name|key|id)="[^"\n]*(?:password|passwd|secret|token|pwd|apikey)[^"\n]*"[^>\n]*?\bvalue="([^"\n]+)"`,
		),
	},
	// netrc
	{"password", regexp.MustCompile(`(?s)\b(?:machine|default|login)\s+\S+\s+(?:login\s+\S+\s+)?password\s+(\S+)`)},
	// In npmrc, pip.conf and other files, no name precedes the secret. An exception is //registry/:_authToken=x, which
	// is an assignment.
	{"--from-literal", regexp.MustCompile(`--from-literal[= ]["']?[^\s=]+=("[^"\n]*"|'[^'\n]*'|[^\s"']+)`)},
}

// Statements about a secret: "password for user setup is X", "token X rejected". The value is not an ordinary word: it
// contains a digit, a punctuation character, or a capital letter after the first.
const odd = `["'\\]*([^\s"'=:;,()\\]*(?:\pL[^\s"'=:;,()\\]*[0-9#!$%^*+~]|[0-9#!$%^*+~][^\s"'=:;,()\\]*\pL|\p{Ll}\p{Lu})[^\s"',;()\\]*)`

var (
	sentence = regexp.MustCompile(
		`(?i:\b[\w.-]*(?:pass(?:word|wd|wort|phrase)?|kennwort|secret|psk|token)(?:[ \t]+[\pL-]+){0,4}?[ \t]+(?:is|ist|lautet|was|war))[ \t]+` + odd,
	)
	aligned = regexp.MustCompile(
		`(?im)^[ \t]*[\w.-]*(?:password|passwd|token|secret|api_?key)(?:[ \t]{2,}|\t)([^\s=:]\S*)[ \t]*$`,
	)
	pair = regexp.MustCompile(
		`(?i)\b(?:root|[\w.-]*admin|[\w.-]*user)[ \t]?/[ \t]?([\w.-]*\pL[\w.-]*[#!$%^*+~][\w.#!$%^*+~-]*)`,
	)
	rejected = regexp.MustCompile(`(?i:\b[\w.-]*(?:pass(?:word|wort)|kennwort|token))[ \t]+` + odd)
)

// withoutArguments removes secrets from the arguments of commands.
func withoutArguments(text string) string {
	lower := strings.ToLower(text)
	for _, a := range arguments {
		if !strings.Contains(lower, a.mark) {
			continue
		}
		text = replaceGroup(a.pattern, text, func(value string) bool { return !isReference(value) })
	}
	return text
}

// isReference reports whether a value is a shell variable.
func isReference(value string) bool {
	value = strings.Trim(value, `"'\`)
	return strings.HasPrefix(value, "$") && !strings.HasPrefix(value, "$1") && len(value) > 1 && value[1] != '2' &&
		!strings.ContainsAny(value[1:], "$/")
}

// replaceGroup replaces the first group of each match, if secret returns true for it.
func replaceGroup(pattern *regexp.Regexp, text string, secret func(value string) bool) string {
	matches := pattern.FindAllStringSubmatchIndex(text, -1)
	if matches == nil {
		return text
	}
	var b strings.Builder
	end := 0
	for _, m := range matches {
		if m[2] < end || !secret(text[m[2]:m[3]]) || strings.Contains(text[m[2]:m[3]], Mark) {
			continue
		}
		b.WriteString(text[end:m[2]])
		b.WriteString(Mark)
		end = m[3]
	}
	b.WriteString(text[end:])
	return b.String()
}

const quoted = `"""(?s:.*?)"""|'''(?s:.*?)'''|\\"(?:[^"\\\n]|\\[^"])*\\"|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'`

var (
	// whole matches a line that consists only of a setting, whose value may contain any character: a line in the output
	// of `env`, an .env file, YAML or INI.
	whole = regexp.MustCompile(
		`^([ \t]*(?:\++ |- |export |declare -x |ENV |set |[-*] )?["']?)([\pL_][\pL\pN_./:-]*)(["']?[ \t]*(?:=|:[ \t]+|:=|：)[ \t]*)([^\s"'{\[|>&*][^\n]*)$`,
	)
	// blank matches a line of a file with a name and a value that are separated only by whitespace.
	blank = regexp.MustCompile(`^[ \t]*([A-Za-z_][\w.-]*)[ \t]+([^\s=:{\[#][^\n]*)$`)
	// within matches a setting within a line.
	within = regexp.MustCompile(
		`([A-Za-z_][\w.-]*)(\]?\\?["']?[ \t]{0,3}(?:=>|:=|==|[=:])[ \t]{0,3}|["'],[ \t]?)(` + quoted + `|\[[^\]{}\n]*\]|\{[^{}\n"':]+\}|[^\s"'&;,(){}\[\]<>|][^\s"'&;,(){}\[\]<>|]*)`,
	)
	// flag matches an option that is followed by its value.
	flag = regexp.MustCompile(`((?:^|[\s"'\[,])--?)([A-Za-z][\w.-]*)(["']?,?[ \t]+)(` + quoted + `|[^\s"'-][^\s"']*)`)
	// header matches an HTTP header, including the forms in which curl -v and frameworks print it.
	header = regexp.MustCompile(
		`(?im)((?:^|["'<> \t-])(?:(?:proxy-)?authorization|set-cookie|cookie|x-[\w-]*(?:key|token|auth|secret)[\w-]*|[\w-]*api-?key|private-token)["']?[ \t]*[:=][ \t]*["']?)()()([^\n"']+)`,
	)
)

// withoutAssignments removes the values of names that suggest a secret, in any syntax: token=x, "password": "x",
// api_key = x, --token x, ["token", "x"].
func withoutAssignments(text string) string {
	if !mayName(text) {
		return text
	}
	text = assign(header, text, true)
	text = withoutLines(text, false)
	text = assign(within, text, false)
	return assign(flag, text, false)
}

// assign removes values that a pattern finds. The groups of the pattern are the text before the name, the name (a
// header's name is secret by itself), the separator, and the value. The first group is optional.
func assign(pattern *regexp.Regexp, text string, named bool) string {
	var b strings.Builder
	end := 0
	for end < len(text) {
		m := pattern.FindStringSubmatchIndex(text[end:])
		if m == nil {
			break
		}
		groups := len(m)/2 - 1
		name := text[end+m[2*(groups-2)] : end+m[2*(groups-2)+1]]
		from, to := end+m[2*groups], end+m[2*groups+1]
		if value := text[from:to]; (named || SecretName(name)) && !harmlessText(name, value, named) {
			b.WriteString(text[end:from])
			b.WriteString(marked(value))
			end = to
			continue
		}
		// The value may be the name of the next setting: env TOKEN=x.
		b.WriteString(text[end:from])
		end = from
	}
	b.WriteString(text[end:])
	return b.String()
}

// harmlessText reports whether the value of a name in a text is not a secret. A sentence after a colon is not a secret,
// except in a header.
func harmlessText(name, value string, header bool) bool {
	if strings.Contains(value, Mark) || isReference(value) || harmlessValue(name, value) {
		return true
	}
	first, _, more := strings.Cut(value, " ")
	return more && !header && harmlessWords[strings.ToLower(strings.Trim(first, `"'.,;:`))]
}

// marked returns the mark with the value's quotes and line breaks.
func marked(value string) string {
	for _, q := range []string{`"""`, "'''", `\"`, `"`, "'"} {
		if strings.HasPrefix(value, q) {
			if len(q) == 3 {
				q = q[:1]
			}
			return q + Mark + q + strings.Repeat("\n", strings.Count(value, "\n"))
		}
	}
	if strings.HasPrefix(value, "[") {
		return `["` + Mark + `"]`
	}
	tail := value[len(strings.TrimRight(value, "\r,")):]
	return Mark + tail
}

// folded matches the first line of a multi-line block in YAML: "passphrase: |". The following lines are indented.
var folded = regexp.MustCompile(`^([ \t]*)(?:- )?["']?([A-Za-z_][\w.-]*)["']?:[ \t]*[|>][+-]?\d*[ \t]*$`)

// heading matches a line that names the value in the next line: "Initial password:"; or, up to a delimiter, in the next
// lines: "password = <<EOT".
var heading = regexp.MustCompile(`([A-Za-z_][\w.-]*)[ \t]*[:=][ \t]*(?:<<[-~]?["']?(\w+)["']?)?[ \t]*$`)

var (
	// typed matches the names of settings that contain passwords. Because people choose passwords, the value on the
	// line below such a name counts as a password even if it consists of plain words joined by dashes.
	typed = regexp.MustCompile(`(?i)^(?:[\w.-]*password|passwd|passphrase|kennwort|passwort)$`)
	// series matches the first line of a list, and item an item line: "tokens:", "- X"; "TOKENS = [", `"X",`.
	series = regexp.MustCompile(`([A-Za-z_][\w.-]*)[sS][ \t]*[:=][ \t]*\[?[ \t]*$`)
	item   = regexp.MustCompile(`^[ \t]*(?:- |["'])["']?([^\s"',:=]{8,})["']?,?[ \t]*$`)
)

// withoutLines removes setting values that extend to the end of the line, or that are in the lines below the setting's
// name.
//
// file is true for configuration files, in which whitespace may separate a name from its value.
func withoutLines(text string, file bool) string {
	lines := strings.Split(text, "\n")
	element := false
	within := -1 // the indentation of the name of a secret block
	for i, line := range lines {
		body := strings.TrimRight(line, "\r")
		inner := strings.TrimLeft(body, " \t")
		depth := len(body) - len(inner)
		if inner == "<auth-user-pass>" || inner == "</auth-user-pass>" { // OpenVPN
			element = inner[1] != '/'
			continue
		}
		switch {
		case element:
			lines[i] = line[:depth] + Mark
			continue
		case within >= 0 && (inner == "" || depth > within):
			if inner != "" && inner != Mark {
				lines[i] = line[:depth] + Mark + line[len(body):]
			}
			continue
		default:
			within = -1
		}
		if m := heading.FindStringSubmatch(body); m != nil && SecretName(m[1]) && i+1 < len(lines) {
			for j := i + 1; m[2] != "" && j < len(lines) && strings.TrimSpace(lines[j]) != m[2]; j++ {
				lines[j] = Mark
			}
			next := strings.TrimSpace(lines[i+1])
			if next != "" && !strings.ContainsAny(next, " \t:=") && next != Mark &&
				(!plain(next) || typed.MatchString(m[1]) && strings.ContainsAny(next, "-_.")) {
				lines[i+1] = strings.Replace(lines[i+1], next, Mark, 1)
			}
		}
		if m := series.FindStringSubmatch(body); m != nil && SecretName(m[1]) {
			for j := i + 1; j < len(lines); j++ {
				one := item.FindStringSubmatch(lines[j])
				if one == nil {
					break
				}
				if !plain(one[1]) && !strings.Contains(one[1], Mark) {
					lines[j] = strings.Replace(lines[j], one[1], Mark, 1)
				}
			}
		}
		if m := folded.FindStringSubmatch(body); m != nil {
			if SecretName(m[2]) {
				within = depth
			}
			continue
		}
		if m := blank.FindStringSubmatchIndex(line); file && m != nil {
			if name, value := line[m[2]:m[3]], line[m[4]:m[5]]; SecretName(name) &&
				!harmlessText(name, value, false) {
				lines[i] = line[:m[4]] + marked(value)
				continue
			}
		}
		if m := whole.FindStringSubmatchIndex(line); m != nil {
			name, value := line[m[4]:m[5]], line[m[8]:m[9]]
			if SecretName(name) && !harmlessText(name, value, false) {
				lines[i] = line[:m[8]] + marked(value)
			}
		}
	}
	return strings.Join(lines, "\n")
}

// nameMarks are strings. Each name that suggests a secret contains at least one of them; most texts contain none.
var nameMarks = []string{
	"token", "pass", "pwd", "pw", "pin", "psk", "secret", "cred", "key", "auth", "webhook", "docker", "dsn", "cookie",
	"jwt",
	"bearer", "otp", "seed", "mnemonic", "sig", "sas", "csrf", "xsrf", "sess", "sid", "community", "salt", "pepper",
	"license",
	"activation", "nonce", "wort", "geheim", "contrase", "motdepasse", "senha", "clave", "parola", "haslo", "hasło",
	"lozinka",
	"salasana", "пароль", "密码", "パスワード", "비밀번호", "mot de passe", "hec",
}

func mayName(text string) bool {
	if !strings.ContainsAny(text, "=:, ：") {
		return false
	}
	lower := strings.ToLower(text)
	for _, mark := range nameMarks {
		if strings.Contains(lower, mark) {
			return true
		}
	}
	return false
}
