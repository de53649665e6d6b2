package redact

import (
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

// secretWords are words that mark a name as the name of a secret, anywhere in the name.
var secretWords = set(
	"token",
	"password",
	"passwd",
	"passphrase",
	"passcode",
	"pass",
	"pwd",
	"pw",
	"pin",
	"psk",
	"secret",
	"credential",
	"cred",
	"apikey",
	"authorization",
	"auth",
	"authkey",
	"privatekey",
	"secretkey",
	"accesskey",
	"accountkey",
	"webhook",
	"dockerconfigjson",
	"dockerconfig",
	"dockercfg",
	"dsn",
	"cookie",
	"jwt",
	"bearer",
	"otp",
	"totp",
	"seed",
	"mnemonic",
	"kennwort",
	"passwort",
	"geheimnis",
	"contraseña",
	"contrasena",
	"motdepasse",
	"senha",
	"clave",
	"parola",
	"wachtwoord",
	"haslo",
	"hasło",
	"lozinka",
	"salasana",
	"пароль",
	"密码",
	"パスワード",
	"비밀번호",
	"hec",
	"authtok",
	"requirepass",
	"signature",
	"sas",
	"sig",
	"csrf",
	"xsrf",
	"sessionid",
	"session",
	"sid",
	"htpasswd",
	"keytab",
	"requirepass",
	"masterauth",
	"userpass",
	"community",
	"salt",
	"pepper",
	"license",
	"activation",
	"nonce",
)

// secretEnds are endings of words without separators: dbpassword, mytoken.
var secretEnds = []string{
	"token", "password", "passwd", "passphrase", "secret", "apikey", "credential", "pwd", "pass", "pw", "seckey",
	"privkey",
	"kennwort", "passwort", "authtok", "community", "authkey", "setupkey", "passkey", "activationkey", "encryptionkey",
}

// keyOf are words before "key" that make it a secret key, not a map key.
var keyOf = set(
	"api",
	"access",
	"private",
	"secret",
	"encryption",
	"encrypt",
	"license",
	"signing",
	"sign",
	"auth",
	"ssh",
	"account",
	"master",
	"storage",
	"shared",
	"service",
	"app",
	"application",
	"host",
	"deploy",
	"admin",
	"root",
	"user",
	"client",
	"server",
	"tls",
	"ssl",
	"rsa",
	"aes",
	"hmac",
	"gpg",
	"pgp",
	"subscription",
	"product",
	"integration",
	"ingest",
	"write",
	"read",
	"project",
	"org",
	"customer",
	"activation",
	"session",
	"cookie",
	"jwt",
	"webhook",
	"primary",
	"secondary",
	"setup",
	"enroll",
	"enrollment",
	"registration",
	"join",
	"device",
	"psk",
	"pre",
)

// places are the last words in the names of settings that contain the location or the name of a secret, or describe how
// the secret is handled: TOKEN_FILE, secretName, passwordPolicy, authMode.
var places = set(
	"file",
	"path",
	"dir",
	"directory",
	"name",
	"names",
	"ref",
	"type",
	"mode",
	"provider",
	"method",
	"policy",
	"enabled",
	"enable",
	"disabled",
	"required",
	"optional",
	"ttl",
	"expiry",
	"expiration",
	"timeout",
	"length",
	"size",
	"count",
	"limit",
	"rotation",
	"version",
	"namespace",
	"port",
	"class",
	"backend",
	"strategy",
	"config",
	"format",
	"key",
	"algorithm",
	"scope",
	"hash",
	"digest",
	"checksum",
	"fingerprint",
	"interval",
	"seconds",
	"requests",
	"audience",
	"issuer",
	"server",
	"driver",
)

// pointers are words before "secret" in setting names whose values are the names of objects, not secrets.
var pointers = set("existing", "pull", "tls", "image", "cert", "certificate", "config", "ca")

func set(all ...string) map[string]bool {
	m := make(map[string]bool, len(all))
	for _, word := range all {
		m[word] = true
	}
	return m
}

// SecretName reports whether a setting, a variable or a flag is secret according to its name.
func SecretName(name string) bool {
	if len(name) > 256 {
		return false
	}
	all := words(name)
	if len(all) == 0 {
		return false
	}
	last, before := all[len(all)-1], ""
	if len(all) > 1 {
		before = all[len(all)-2]
	}
	if last == "key" || last == "keys" {
		return keyOf[before] || len(all) > 1 && strings.ToUpper(name) == name && !slices.Contains(all[:1], "nvidia")
	}
	if strings.HasPrefix(strings.Join(all, ""), "dockerconfig") {
		return true
	}
	if places[last] {
		return false
	}
	// secretName, existingSecret and imagePullSecrets refer to objects.
	if (last == "secret" || last == "secrets") && pointers[before] {
		return false
	}
	return slices.ContainsFunc(all, isSecretWord)
}

// sums are words in the names of values that look random but are not secret.
var sums = set(
	"checksum",
	"checksums",
	"hash",
	"digest",
	"revision",
	"commit",
	"sha",
	"sha1",
	"sha256",
	"sha512",
	"md5",
	"fingerprint",
	"etag",
	"generation",
	"rev",
)

// ids are the words that precede "id" in the names of identifiers whose values look random.
var ids = set("container", "sandbox", "pod", "image", "machine", "boot", "instance", "node", "run", "job", "trace")

// sumName reports whether a setting contains a checksum according to its name.
func sumName(name string) bool {
	all := words(name)
	if n := len(all) - 1; n > 0 && all[n] == "id" && ids[all[n-1]] {
		return true
	}
	return slices.ContainsFunc(all, func(word string) bool { return sums[word] }) && !SecretName(name)
}

// secretGroup reports whether everything below a setting is secret: passwords: [..], tokens: {admin: ..}.
func secretGroup(name string) bool {
	all := words(name)
	if len(all) == 0 || !SecretName(name) {
		return false
	}
	last := all[len(all)-1]
	return isSecretWord(last) || strings.HasSuffix(last, "key") || strings.HasSuffix(last, "keys")
}

func isSecretWord(word string) bool {
	if secretWords[word] || secretWords[strings.TrimSuffix(word, "s")] {
		return true
	}
	word = strings.TrimSuffix(word, "s")
	return (len(word) > 5 || len(word) > 3 && strings.HasSuffix(word, "pw")) && word != "bypass" &&
		word != "compass" &&
		slices.ContainsFunc(secretEnds, func(end string) bool { return strings.HasSuffix(word, end) })
}

// harmlessWords are values that describe a problem or a choice, even though their names suggest a secret: "token:
// expired".
var harmlessWords = set(
	"get", "post", "put", "patch", // failed to call webhook: Post "https://..."
	"true",
	"false",
	"null",
	"none",
	"nil",
	"not",
	"no",
	"yes",
	"on",
	"off",
	"is",
	"was",
	"are",
	"the",
	"a",
	"an",
	"of",
	"for",
	"to",
	"in",
	"from",
	"and",
	"or",
	"with",
	"expired",
	"invalid",
	"unknown",
	"missing",
	"cannot",
	"could",
	"failed",
	"failure",
	"error",
	"errors",
	"unauthorized",
	"forbidden",
	"denied",
	"required",
	"empty",
	"unexpected",
	"wrong",
	"default",
	"auto",
	"basic",
	"bearer",
	"oauth2",
	"optional",
	"disabled",
	"enabled",
	"anonymous",
	"string",
	"bytes",
	"authentication",
	"authorization",
	"{}",
	"[]",
	"{",
	"[",
	`""`,
	"''",
	"|",
	">",
	"*",
	"-",
	strings.ToLower(Mark),
	strings.ToLower(Mark)+`"`,
)

// harmlessValue reports whether a value is not a secret although its name suggests one. Such values are a choice, a
// number of tokens, or a reference to a variable.
func harmlessValue(name, value string) bool {
	bare := strings.ToLower(strings.Trim(value, "\\\"'.,;:()"))
	if bare == "" || harmlessWords[bare] {
		return true
	}
	if strings.HasPrefix(value, "$(") && strings.HasSuffix(value, ")") ||
		strings.HasPrefix(value, "${") && strings.HasSuffix(value, "}") && !strings.Contains(value, ":") {
		return true
	}
	// For example max_tokens=4096 or sessions: 12. A PIN or a password may also be a number.
	if strings.TrimLeft(bare, "0123456789._,") == "" {
		all := words(name)
		last := ""
		if len(all) > 0 {
			last = all[len(all)-1]
		}
		return len(bare) < 4 || strings.HasSuffix(last, "s") && last != "pass" || last == "seed" && len(bare) < 12 ||
			last == "license" || last == "community" || last == "session"
	}
	return false
}
