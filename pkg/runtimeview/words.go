package runtimeview

import (
	"strings"
)

// verb returns the singular or plural form of a verb, depending on the number of names.
func verb(names []string, singular string) string {
	if len(names) > 1 {
		return strings.TrimSuffix(singular, "s")
	}
	return singular
}

func have(names []string) string {
	if len(names) > 1 {
		return "have"
	}
	return "has"
}

func plainly(what string, names []string) string {
	if len(names) > 1 {
		what += "s"
	}
	return what + " " + strings.Join(names, ", ")
}

func isAre(what string, names []string) string {
	if len(names) > 1 {
		return plainly(what, names) + " are"
	}
	return plainly(what, names) + " is"
}

func itThem(names []string) string {
	if len(names) > 1 {
		return "them"
	}
	return "it"
}
