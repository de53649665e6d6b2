package nvidiasmi

import (
	"strconv"
	"strings"
)

// word returns the first value that is told at any of the paths.
func (e *element) word(paths ...string) string {
	for _, path := range paths {
		if at := e.at(path); at != nil && told(at.text) {
			return at.text
		}
	}
	return ""
}

// number returns the first value at any of the paths that is a whole number, whatever its unit: 20 C, 16x, 192 bank(s),
// 81920 MiB.
func (e *element) number(paths ...string) *int64 {
	text := e.word(paths...)
	end := 0
	for end < len(text) && (text[end] >= '0' && text[end] <= '9' || end == 0 && text[end] == '-') {
		end++
	}
	n, err := strconv.ParseInt(text[:end], 10, 64)
	if err != nil {
		return nil
	}
	return &n
}

// flag returns the first value at any of the paths that says yes or no.
func (e *element) flag(paths ...string) *bool {
	for _, path := range paths {
		switch strings.ToLower(e.word(path)) {
		case "yes", "enabled", "active":
			yes := true
			return &yes
		case "no", "disabled", "not active":
			no := false
			return &no
		}
	}
	return nil
}

// told reports whether a text is a value, and not a way to say that there is none.
func told(text string) bool {
	switch strings.ToLower(strings.Trim(text, "[]")) {
	case "", "n/a", "none available", "not supported", "not available", "not found", "insufficient permissions",
		"requested functionality has been deprecated":
		return false
	}
	return !failed(text)
}

// failed reports whether a text says that the value could not be had.
func failed(text string) bool {
	bare := strings.ToLower(strings.Trim(text, "[]"))
	return bare == "unknown error" || bare == "err!" || lost(text)
}

// lost reports whether a text says that the GPU does not answer.
func lost(text string) bool {
	bare := strings.ToLower(strings.Trim(text, "[]"))
	return bare == "gpu is lost" || bare == "gpu requires reset"
}

// sum adds what is known; false when nothing is.
func sum(values ...*int64) (total int64, known bool) {
	for _, v := range values {
		if v != nil {
			total, known = total+*v, true
		}
	}
	return total, known
}

func sumOf(values ...*int64) *int64 {
	if total, known := sum(values...); known {
		return &total
	}
	return nil
}
