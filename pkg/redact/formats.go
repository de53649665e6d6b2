package redact

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/tsv"
)

// format is the format of a credential.
type format struct {
	keywords []string // in lower case; every text with the credential contains one of them
	group    int      // the group in the pattern that matches the secret
	entropy  float64  // the minimum entropy, in bits per character
	source   string
	pattern  func() *regexp.Regexp
}

// formats contains all formats. The table is tested, so it contains no errors.
var formats = sync.OnceValue(func() []format {
	all, _ := readFormats()
	return all
})

func readFormats() ([]format, error) {
	all := ownFormats()
	table, err := rules()
	if err != nil {
		return nil, err
	}
	err = tsv.Each("rules.tsv", table, "id keywords group entropy regex", func(row map[string]string) error {
		group, err := strconv.Atoi(row["group"])
		if err != nil {
			return err
		}
		entropy, err := strconv.ParseFloat(row["entropy"], 64)
		if err != nil {
			return err
		}
		all = append(all, newFormat(row["regex"], group, entropy, strings.Split(row["keywords"], ",")...))
		return nil
	})
	return all, err
}

// bootstrapToken is the format of Kubernetes' bootstrap tokens, which have no keyword.
// https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/
var bootstrapToken = newFormat(`(?:^|[^\w.-])([a-z0-9]{6}\.[a-z0-9]{16})(?:[^\w.-]|$)`, 1, 2.5)

// productKey is the format of product keys: groups of the same length.
var productKey = newFormat(
	`\b(?:[A-Z0-9]{4}(?:-[A-Z0-9]{4}){3,}|[A-Z0-9]{5}(?:-[A-Z0-9]{5}){3,}|[A-Z0-9]{6}(?:-[A-Z0-9]{6}){3,})\b`, 0, 3,
)

func newFormat(source string, group int, entropy float64, keywords ...string) format {
	return format{
		keywords: keywords, group: group, entropy: entropy, source: source,
		pattern: sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(source) }),
	}
}

// ownFormats returns formats that gitleaks does not have, or only recognizes in quotes.
func ownFormats() []format {
	return []format{
		newFormat(
			`-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----((?s:.*?))(?:-----END [A-Z0-9 ]*PRIVATE KEY|\z)`,
			1,
			0,
			"private key",
		),
		// A user name and password in an address.
		newFormat(`[A-Za-z][A-Za-z0-9+.-]*://([^/\s@"'<>]*:[^\s"'<>]*?)@[\w.\[-]`, 1, 0, "://"),
		newFormat(`[A-Za-z][A-Za-z0-9+.-]*://([A-Za-z0-9_.~%-]{12,})@[\w.\[-]`, 1, 0, "://"),
		// https://github.com/go-sql-driver/mysql#dsn-data-source-name
		newFormat(`(?:^|[\s"'=])([^\s"'=:@/]+:[^\s"'@]+)@(?:tcp|unix|udp)\(`, 1, 0, "@tcp(", "@unix(", "@udp("),
		newFormat(`(?i)\b(?:bearer|negotiate)[ \t]+([A-Za-z0-9._~+/=:-]{8,})`, 1, 0, "bearer", "negotiate"),
		newFormat(`\b[Bb](?:asic|ASIC)[ \t]+([A-Za-z0-9+/]*[A-Z0-9][A-Za-z0-9+/]{7,}={0,2})`, 1, 0, "basic"),
		newFormat(`\beyJ[A-Za-z0-9_+/=-]{8,}(?:\.[A-Za-z0-9_+/=-]*){0,2}`, 0, 0, "eyj"),
		newFormat(`\b(?:A3T[A-Z0-9]|APKA|AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[0-9A-Z]{16}\b`, 0, 0,
			"a3t", "apka", "akia", "asia", "abia", "acca", "aroa", "aida"),
		newFormat(
			`\b(?:nvapi-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{16,}|gh[oprsu]_[A-Za-z0-9]{20,}|`+
				`github_pat_[A-Za-z0-9_]{20,}|gl[a-z]{2,6}-[A-Za-z0-9_.-]{16,}|sk-[A-Za-z0-9_-]{16,}|[sr]k_(?:live|test)_\w{10,}|`+
				`xox[a-z]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{10,}|`+
				`1//0[A-Za-z0-9_-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,}|hv[sbr]\.[A-Za-z0-9_-]{16,}|dckr_[po]at_[A-Za-z0-9_-]{16,}|`+
				`npm_[A-Za-z0-9]{20,}|pypi-[A-Za-z0-9_-]{16,}|dapi[a-f0-9]{30,}|r8_[A-Za-z0-9]{20,}|ATATT[A-Za-z0-9_=-]{20,}|`+
				`ATBB[A-Za-z0-9]{20,}|SG\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}|gl(?:c|sa)_[A-Za-z0-9+/=_]{20,}|`+
				`dop_v1_[a-f0-9]{30,}|lin_api_\w{20,}|secret_[A-Za-z0-9]{30,}|shp(?:at|ss|ca)_[a-fA-F0-9]{20,}|whsec_[\w+/=]{16,}|`+
				`AGE-SECRET-KEY-1[A-Z0-9]{20,}|cohere_[A-Za-z0-9]{20,}|gsk_[A-Za-z0-9]{20,}|pplx-[a-z0-9]{20,}|tskey-[\w-]{16,}|`+
				`local-[a-f0-9]{40}|rpa_[A-Za-z0-9]{20,}|sha256~[\w-]{30,})`,
			0,
			0,
			"nvapi-",
			"hf_",
			"api_org_",
			"gho_",
			"ghp_",
			"ghr_",
			"ghs_",
			"ghu_",
			"github_pat_",
			"gl",
			"sk-",
			"k_live_",
			"k_test_",
			"xox",
			"xapp-",
			"aiza",
			"ya29.",
			"1//0",
			"gocspx-",
			"hvs.",
			"hvb.",
			"hvr.",
			"dckr_",
			"npm_",
			"pypi-",
			"dapi",
			"r8_",
			"atatt",
			"atbb",
			"sg.",
			"dop_v1_",
			"lin_api_",
			"secret_",
			"shpat_",
			"shpss_",
			"shpca_",
			"whsec_",
			"age-secret-key-",
			"cohere_",
			"gsk_",
			"pplx-",
			"tskey-",
			"local-",
			"rpa_",
			"sha256~",
		),
		// Password hashes: htpasswd, shadow, bcrypt.
		newFormat(`\$(?:apr1|2[abxy]|[156y]|argon2[a-z]*|scrypt)\$[A-Za-z0-9./$,=+-]{8,}`, 0, 0,
			"$apr1", "$2", "$1$", "$5$", "$6$", "$y$", "$argon2", "$scrypt"),
		newFormat(
			`\{(?:SSHA|SHA|SMD5|MD5|CRYPT)[0-9]*\}[A-Za-z0-9+/=.$]{8,}`,
			0,
			0,
			"sha}",
			"sha256}",
			"sha512}",
			"md5}",
			"crypt}",
		),
		newFormat(`(?:hooks\.slack\.com/[a-z]+|discord(?:app)?\.com/api/webhooks|webhook\.office\.com|`+
			`outlook\.office\.com/webhook|hooks\.zapier\.com/hooks/catch|api\.telegram\.org/bot)/?([^\s"'<>]+)`, 1, 0,
			"hooks.slack.com", "/api/webhooks/", "webhook", "hooks.zapier.com", "api.telegram.org"),
		// Azure's shared access signatures, and signed URLs of cloud providers.
		newFormat(`(?i)[?&;"' ](?:sig|x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature|`+
			`x-goog-credential|session_state|id_token_hint|samlresponse|awsaccesskeyid|signature)=([^&\s"';]+)`, 1, 0, "sig=", "amz-", "goog-", "awsaccess",
			"signature=", "state=", "hint=", "samlresponse="),
		// OAuth authorization codes. Programs also write code=exited and code=805(cudaErrorMpsConnectionFailed).
		newFormat(`(?i)[?&;"' ]code=([^&\s"';(,]{16,}[^&\s"';]*)`, 1, 0, "code="),
		newFormat(`otpauth://[^\s"']*?secret=([A-Za-z2-7=]+)`, 1, 0, "otpauth:"),
	}
}

// keywordIndex finds the formats whose keywords occur in a text, in one pass.
type keywordIndex struct {
	by     map[[2]byte][]keyword // by their first two bytes
	starts [1 << 16]bool         // whether a keyword starts with these two bytes
}

type keyword struct {
	word   string
	format int
}

var keywords = sync.OnceValue(func() *keywordIndex {
	index := &keywordIndex{by: map[[2]byte][]keyword{}}
	for i, f := range formats() {
		for _, word := range f.keywords {
			start := [2]byte{word[0], word[1]}
			index.by[start] = append(index.by[start], keyword{word, i})
			index.starts[int(word[0])<<8|int(word[1])] = true
		}
	}
	return index
})

// in returns the numbers of the formats whose keywords occur in the text, sorted.
func (index *keywordIndex) in(text string) []int {
	var found []int
	for i := range len(text) - 1 {
		a, b := lowerByte(text[i]), lowerByte(text[i+1])
		if !index.starts[int(a)<<8|int(b)] {
			continue
		}
		for _, k := range index.by[[2]byte{a, b}] {
			if len(text)-i >= len(k.word) && strings.EqualFold(text[i:i+len(k.word)], k.word) &&
				!slices.Contains(found, k.format) {
				found = append(found, k.format)
			}
		}
	}
	slices.Sort(found)
	return found
}

func lowerByte(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

// mayHaveToken reports whether the text contains a dot with as many letters and digits around it as in a bootstrap
// token.
func mayHaveToken(text string) bool {
	for at := strings.IndexByte(text, '.'); at >= 0; {
		if at >= 6 && len(text) >= at+17 && !strings.ContainsFunc(text[at-6:at], notLower) &&
			!strings.ContainsFunc(text[at+1:at+17], notLower) {
			return true
		}
		next := strings.IndexByte(text[at+1:], '.')
		if next < 0 {
			return false
		}
		at += 1 + next
	}
	return false
}

func notLower(c rune) bool { return (c < 'a' || c > 'z') && (c < '0' || c > '9') }

// withoutFormats removes strings in the format of a credential.
func withoutFormats(text string) string {
	if len(text) < shortestKnown {
		return text
	}
	for _, i := range keywords().in(text) {
		text = formats()[i].cut(text)
	}
	if mayHaveToken(text) {
		text = bootstrapToken.cut(text)
	}
	if strings.Count(text, "-") > 2 && strings.ContainsAny(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		text = productKey.cut(text)
	}
	return text
}

func (f format) cut(text string) string {
	matches := f.pattern().FindAllStringSubmatchIndex(text, -1)
	if matches == nil {
		return text
	}
	var b strings.Builder
	end := 0
	for _, m := range matches {
		from, to := m[2*f.group], m[2*f.group+1]
		secret := ""
		if from >= end {
			secret = text[from:to]
		}
		if secret == "" || strings.Contains(secret, Mark) || entropy(secret) < f.entropy ||
			harmlessWords[strings.ToLower(secret)] {
			continue
		}
		b.WriteString(text[end:from])
		b.WriteString(Mark)
		b.WriteString(strings.Repeat("\n", strings.Count(secret, "\n")))
		end = to
	}
	b.WriteString(text[end:])
	return b.String()
}

// entropy returns the Shannon entropy of a string, in bits per byte.
func entropy(s string) float64 {
	var counts [256]int
	for i := range len(s) {
		counts[s[i]]++
	}
	bits := 0.0
	for _, n := range counts {
		if n > 0 {
			p := float64(n) / float64(len(s))
			bits -= p * math.Log2(p)
		}
	}
	return bits
}
