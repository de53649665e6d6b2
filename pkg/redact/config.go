package redact

import (
	"regexp"
	"slices"
	"strings"
)

// registryKey matches a key and a value with a registry credential, in TOML, YAML or JSON. User names are secret there:
// the names of robot accounts are half of a credential.
// https://github.com/containerd/containerd/blob/main/docs/cri/registry.md
var registryKey = regexp.MustCompile(
	`(?im)((?:^|[\s{,."'])["']?(?:[a-z0-9_-]*(?:password|passwd|token|secret|credential|api_?key|private_?key)|auth|username|authorization)["']?[ \t]*(?::=|[=:])[ \t]*)` +
		`("""(?s:.*?)"""|'''(?s:.*?)'''|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\[[^\]{]*\]|[^\s{\["'#,}][^\s#,}]*)`,
)

// Config returns a configuration file with its secrets redacted. Line breaks are preserved, so line numbers still
// match.
func Config(text string) string {
	text = registryKey.ReplaceAllStringFunc(text, func(setting string) string {
		parts := registryKey.FindStringSubmatch(setting)
		key, value := parts[1], parts[2]
		if value == "[]" || value[0] == '|' || value[0] == '>' || strings.HasPrefix(value, "<<") ||
			harmlessWords[strings.ToLower(strings.Trim(value, `"'`))] ||
			strings.Trim(value, `"'`) == "" || strings.HasPrefix(strings.Trim(value, `"'`), Mark) {
			return setting
		}
		with := `"` + Mark + `"`
		if value[0] == '[' {
			with = "[" + with + "]"
		}
		return key + with + strings.Repeat("\n", strings.Count(value, "\n"))
	})
	return Text(withoutLines(text, true))
}

// userOption matches the options of curl and other programs that take USER:PASSWORD.
var userOption = regexp.MustCompile(`^-[A-Za-z]*[uU]$|^--(?:[a-z]+-)?user$`)

// Arguments returns the arguments of a command without secrets, even if an option and its value are separate arguments.
func Arguments(all []string) []string {
	cleaned := slices.Clone(all)
	for i, arg := range all {
		option, value, joined := strings.Cut(arg, "=")
		switch {
		case i > 0 && isOption(all[i-1]) && !strings.ContainsAny(all[i-1], "= ") && !strings.HasPrefix(arg, "-"):
			cleaned[i] = Setting(strings.TrimLeft(all[i-1], "-"), arg)
		case joined && !strings.ContainsAny(option, " \t\n/"):
			cleaned[i] = option + "=" + Setting(strings.TrimLeft(option, "-"), value)
		case i > 0 && !isOption(arg) && !strings.ContainsAny(arg, " \t\n"):
			cleaned[i] = Value(arg)
		default:
			cleaned[i] = Text(arg)
		}
		if i > 0 && all[i-1] == "-p" && shortSecret.MatchString(arg) {
			cleaned[i] = Mark
		}
		if i > 0 && userOption.MatchString(all[i-1]) && strings.Contains(arg, ":") { // curl
			cleaned[i] = Mark
		}
	}
	return acrossArguments(all, cleaned)
}

// shortSecret matches a word after -p, which is a password in many programs, but a port or a path in others.
var shortSecret = regexp.MustCompile(`^[^\s/:-][^\s/:]*\pL[^\s/:]*$|^\pL[^\s/:]{5,}$`)

// acrossArguments removes secrets that can be recognized only in the whole command line, such as KEY in wandb login
// KEY.
func acrossArguments(all, cleaned []string) []string {
	joined := strings.Join(cleaned, " ")
	whole := withoutArguments(joined)
	if whole == joined {
		return cleaned
	}
	rest := whole
	for i, arg := range cleaned {
		if text, ok := strings.CutPrefix(rest, arg); ok {
			rest = strings.TrimPrefix(text, " ")
			continue
		}
		if text, ok := strings.CutPrefix(rest, Mark); ok {
			cleaned[i], rest = Mark, strings.TrimPrefix(text, " ")
			continue
		}
		cleaned[i] = withoutArguments(arg)
		if text, ok := strings.CutPrefix(rest, cleaned[i]); ok {
			rest = strings.TrimPrefix(text, " ")
			continue
		}
		for j := 1; j < len(cleaned); j++ { // an unknown part of it is a secret
			cleaned[j] = Mark
		}
		return cleaned
	}
	return cleaned
}

func isOption(arg string) bool { return len(arg) > 1 && arg[0] == '-' }
