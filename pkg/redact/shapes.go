package redact

import (
	"regexp"
	"strings"
	"unicode"
)

// Minimum lengths of words that look random, in bytes.
const (
	longRandom  = 20 // letters and digits
	mixedRandom = 14 // lower-case letters, upper-case letters and digits
	hexRandom   = 32
)

// token matches the words in a text that may be random. Slashes and dots end a word; in a path, each part is a word.
var token = regexp.MustCompile(`[A-Za-z0-9_+~-]{12,}(?:[/.][A-Za-z0-9_+~-]+)*={0,2}`)

// identifier matches identifiers that look random but are not secret: UUIDs, including those of GPUs, digests,
// addresses.
var identifier = regexp.MustCompile(
	`(?i)^(?:(?:GPU|MIG|NVLINK|PCI)-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?:[/.]\d+)*$|` +
		`^0x[0-9a-f]{1,20}$|^_Z[A-Za-z0-9_]+$|^sha(?:256|384|512|1)-|^rendered-[a-z0-9-]+-[0-9a-f]{32}$`,
)

// idBefore matches the text before a container ID, a digest or an address.
var idBefore = regexp.MustCompile(
	`(?i)(?:sha\d+[:-]|md5:|://|container[^\w]{1,3}(?:id[^\w]{1,3})?|sandbox[^\w]{1,3}(?:id[^\w]{1,3})?|digest[^\w]{1,3}|` +
		`checksum[^\w]{1,3}|commit[^\w]{1,3}|layer[^\w]{1,3}|(?:^|\s)(?:id|uid|trace_?id|span_?id|boot_?id|machine-?id|root)[=:]["']?|0x[0-9a-f]{0,4}|rendered-[a-z0-9-]*-|(?:expected|actual|got|computed)[^\w]{1,3}|k8s\.io/|shim[^\w]{1,3}|task[^\w]{1,3}|cri-containerd-|libpod-|crio-|docker-|pod)$`,
)

// withoutRandom removes words that look random.
func withoutRandom(text string) string {
	var b strings.Builder
	end := 0
	for _, m := range token.FindAllStringIndex(text, -1) {
		word := text[m[0]:m[1]]
		if strings.Contains(word, Mark) || identifier.MatchString(word) {
			continue
		}
		path := m[0] > 0 && (text[m[0]-1] == '/' || text[m[0]-1] == '.') && !inURL(text[:m[0]])
		known := idBefore.MatchString(text[max(0, m[0]-24):m[0]])
		at := m[0]
		for _, part := range splitParts(word) {
			from, to := at, at+len(part)
			at = to + 1
			if !isRandom(part, path || known) {
				continue
			}
			if !path { // base64 also contains slashes
				from, to = m[0], m[1]
			}
			b.WriteString(text[end:from])
			b.WriteString(Mark)
			end = to
			if !path {
				break
			}
		}
	}
	b.WriteString(text[end:])
	return b.String()
}

// splitParts splits a word at slashes and dots.
func splitParts(word string) []string {
	return strings.FieldsFunc(word, func(c rune) bool { return c == '/' || c == '.' })
}

// inURL reports whether a text ends within an HTTP URL.
func inURL(before string) bool {
	before = before[strings.LastIndexAny(before, " \t\n\"'<>(")+1:]
	return strings.Contains(before, "://")
}

// isRandom reports whether a word looks randomly generated. If identified is true, the preceding text marks the word as
// an identifier, so hexadecimal digits do not count as random.
func isRandom(word string, identified bool) bool {
	word = strings.TrimRight(word, "=")
	if identified && (isHex(word) || identifier.MatchString(word)) {
		return false
	}
	for _, part := range strings.FieldsFunc(word, func(c rune) bool { return strings.ContainsRune("-_=~", c) }) {
		if partIsRandom(part) {
			return true
		}
	}
	// URL-safe Base64 contains - and _: few of its parts are long, but it is long as a whole.
	return len(word) >= 2*longRandom && mixed(word) && switches(word) > len(word)/3 && !wordy(word)
}

func partIsRandom(part string) bool {
	switch {
	case len(part) < mixedRandom:
		return false
	case isHex(part):
		return len(part) >= hexRandom || len(part) >= longRandom && strings.ContainsAny(part, "ABCDEF")
	case len(part) >= longRandom && strings.ToUpper(part) == part && entropy(part) > 3.3:
		return true // names in capital letters contain underscores
	}
	upper, lower, digit := classes(part)
	switch {
	case upper && lower && digit:
		return switches(part) >= 4 && entropy(part) > 3 && !wordy(part)
	case (upper || lower) && digit, upper && lower:
		return len(part) >= longRandom && switches(part) >= 4 && entropy(part) > 3.2 && !wordy(part)
	case upper || lower:
		return len(part) >= longRandom && entropy(part) > 3.3 && !pronounceable(part)
	}
	return false
}

func classes(s string) (upper, lower, digit bool) {
	for _, c := range s {
		upper = upper || unicode.IsUpper(c)
		lower = lower || unicode.IsLower(c)
		digit = digit || unicode.IsDigit(c)
	}
	return upper, lower, digit
}

func mixed(s string) bool {
	upper, lower, digit := classes(s)
	return upper && lower && digit
}

// switches counts the positions where the class of characters changes in a word, except from an upper-case to a
// lower-case letter.
func switches(s string) int {
	n, last := 0, 0
	for _, c := range s {
		class := 3
		switch {
		case unicode.IsLower(c):
			class = 1
		case unicode.IsUpper(c):
			class = 2
		}
		if last != 0 && class != last && (last != 2 || class != 1) {
			n++
		}
		last = class
	}
	return n
}

func isHex(s string) bool {
	digit := false
	for _, c := range s {
		switch {
		case c >= '0' && c <= '9':
			digit = true
		case c >= 'a' && c <= 'f', c >= 'A' && c <= 'F':
		default:
			return false
		}
	}
	return digit
}

// humps matches the words in a camel case name, and numbers.
var humps = regexp.MustCompile(`[A-Z]?[a-z]+|[A-Z]+|[0-9]+`)

// wordy reports whether most of a name consists of words: cudaDeviceSynchronize, RmInitAdapter2, libnvidia550.
func wordy(s string) bool {
	inWords := 0
	for _, hump := range humps.FindAllString(s, -1) {
		if len(hump) >= 4 && pronounceable(hump) {
			inWords += len(hump)
		}
	}
	return inWords*2 > len(s)
}

// pronounceable reports whether letters may be a natural word: vowels and consonants alternate.
func pronounceable(s string) bool {
	if len(s) < 4 {
		return true
	}
	vowels, run, longest := 0, 0, 0
	for _, c := range strings.ToLower(s) {
		if strings.ContainsRune("aeiouy", c) {
			vowels++
			run = 0
			continue
		}
		run++
		longest = max(longest, run)
	}
	return vowels*5 >= len(s) && vowels*10 <= len(s)*8 && longest <= 4
}

// plain reports whether a value consists only of letters and the separators - . _ /, as the value of a label does and a
// password usually does not.
func plain(value string) bool {
	return strings.Trim(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-._/") == ""
}

var (
	// separators are the characters in ordinary values besides words.
	separators = regexp.MustCompile(`[-/_.:,;=@(){}\[\]<>|&"'+*\\]+`)
	// ordinaryPart matches a part of an ordinary value: a word, a number, a number with a unit, a version, a model.
	ordinaryPart = regexp.MustCompile(
		`^(?:[A-Za-z]*|[0-9]{1,20}|[0-9]+[A-Za-z]{1,4}|[A-Za-z]{1,12}[0-9]{1,6}[A-Za-z]{0,4}|[0-9]{1,4}[A-Za-z]{1,3}[0-9]{1,4}|[a-z0-9]{1,10}|[A-Za-z]{1,8}[0-9]{1,4}[A-Za-z]{1,8}[0-9]{0,4}|%[a-zA-Z]|[0-9]+%|~)$`,
	)
	variable = regexp.MustCompile(`\$\([A-Za-z_][\w.]*\)|\$\{?[A-Za-z_]\w*\}?|\{\{[^{}]*\}\}|%[a-z]`)
)

// strictFIFO is a value in Kueue's API that looks like a password.
const strictFIFO = "StrictFIFO"

// ordinary reports whether a single word consists of words, numbers, versions, paths and addresses. Any other word
// could be a password.
func ordinary(value string) bool {
	if identifier.MatchString(value) || value == strictFIFO {
		return true
	}
	value = variable.ReplaceAllString(value, "")
	for _, part := range separators.Split(value, -1) {
		if !ordinaryPart.MatchString(part) {
			if isHex(part) && len(part) <= 12 || wordy(part) && !strings.ContainsAny(part, "!$^#?%") {
				continue
			}
			return false
		}
		if upper, lower, _ := classes(part); upper && lower && len(part) >= 8 && !wordy(part) {
			return false
		}
		if len(part) > 16 && strings.Trim(part, "0123456789") != "" && !wordy(part) {
			return false
		}
	}
	return true
}
