package nvidiasmi

import (
	"strconv"
	"strings"
)

// word returns the first value that is present at one of the paths.
func (e *element) word(paths ...string) string {
	for _, path := range paths {
		if at := e.at(path); at != nil && isValue(at.text) {
			return at.text
		}
	}
	return ""
}

// number returns the first value at one of the paths that is an integer, with any unit: 20 C, 16x, 192 bank(s), 81920
// MiB.
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

// flag returns the first boolean value at one of the paths.
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

// isValue reports whether a text is a value, rather than a statement that there is none.
func isValue(text string) bool {
	switch strings.ToLower(strings.Trim(text, "[]")) {
	case "", "n/a", "none available", "not supported", "not available", "not found", "insufficient permissions",
		"requested functionality has been deprecated":
		return false
	}
	return !failed(text)
}

// failed reports whether a text means that the value could not be read.
func failed(text string) bool {
	bare := strings.ToLower(strings.Trim(text, "[]"))
	return bare == "unknown error" || bare == "err!" || lost(text)
}

// lost reports whether a text means that the GPU does not respond.
func lost(text string) bool {
	bare := strings.ToLower(strings.Trim(text, "[]"))
	return bare == "gpu is lost" || bare == "gpu requires reset"
}

// sum adds the known values; it returns false if no value is known.
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
