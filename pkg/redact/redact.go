// Package redact removes secrets from texts and from trees of settings, so that they can be shown and posted publicly.
//
// Structure is allowed by name, and values are denied by shape. Text removes the values of names that suggest a secret
// (DB_PASS=x), strings in the format of a known credential (rules.tsv), arguments of commands that take a password, and
// strings that look random. Setting, for a single configuration value, also removes words that could be passwords
// although nothing indicates this. A secret that looks like an ordinary word and has an ordinary name cannot be
// recognized.
package redact

import (
	"regexp"
	"strings"
)

// inner matches a setting within an identifier.
var inner = regexp.MustCompile(`\w=[\w"']`)

// Mark replaces a secret.
const Mark = "REDACTED"

// Text returns a text of any kind (a log, an event, a script, a file) without secrets. Line breaks are preserved.
func Text(text string) string {
	if text == "" || text == Mark {
		return text
	}
	text = withoutFormats(text)
	text = withoutArguments(text)
	text = withoutAssignments(text)
	return withoutRandom(text)
}

// Known returns a text without strings in the format of a known credential. It is for identifiers, which may look
// random: names, IDs, images.
func Known(text string) string {
	if strings.Contains(text, "=") && inner.MatchString(text) {
		return Text(text)
	}
	if len(text) < shortestKnown {
		return text
	}
	return withoutFormats(text)
}

// shortestKnown is the minimum length of a string in the format of a credential.
const shortestKnown = 12

// Setting returns the value of a setting, a variable or a flag without secrets.
func Setting(name, value string) string {
	switch {
	case value == "" || value == Mark:
		return value
	case SecretName(name):
		if harmlessValue(name, value) {
			return value
		}
		return Mark
	}
	if sumName(name) {
		return Known(value)
	}
	return Value(value)
}

// Value returns a value whose name does not describe it, without secrets. Unlike Text, it removes a single word that is
// not an ordinary word, number, path or address.
func Value(value string) string {
	cleaned := Text(value)
	if cleaned == value && !strings.ContainsAny(value, " \t\r\n") && !ordinary(value) {
		return Mark
	}
	return cleaned
}
