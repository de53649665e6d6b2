package markup

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// themes returns the colors of the light and the dark page by their names, as shares of red, green and blue that are
// linear in light.
func themes(t *testing.T) map[string]map[string][3]float64 {
	t.Helper()
	light, dark, ok := strings.Cut(Style, "@media (prefers-color-scheme: dark)")
	if !ok {
		t.Fatal("page.css has no dark colors")
	}
	dark, _, _ = strings.Cut(dark, "\n}\n")
	all := map[string]map[string][3]float64{"light": {}, "dark": {}}
	for theme, css := range map[string]string{"light": light, "dark": dark} {
		for _, m := range regexp.MustCompile(`--([a-z-]+): #([0-9a-f]{3,6});`).FindAllStringSubmatch(css, -1) {
			hex := m[2]
			if len(hex) == 3 {
				hex = string([]byte{hex[0], hex[0], hex[1], hex[1], hex[2], hex[2]})
			}
			var c [3]float64
			for i := range c {
				n, err := strconv.ParseUint(hex[2*i:2*i+2], 16, 8)
				if err != nil {
					t.Fatal(err)
				}
				c[i] = linear(float64(n) / 255)
			}
			all[theme][m[1]] = c
		}
	}
	return all
}

// linear takes the gamma of sRGB away.
func linear(v float64) float64 {
	if v <= 0.04045 {
		return v / 12.92
	}
	return math.Pow((v+0.055)/1.055, 2.4)
}

// contrast returns that of WCAG 2, from 1 to 21.
func contrast(a, b [3]float64) float64 {
	light := func(c [3]float64) float64 { return 0.2126*c[0] + 0.7152*c[1] + 0.0722*c[2] + 0.05 }
	x, y := light(a), light(b)
	return max(x, y) / min(x, y)
}

// Text can be read in both themes: WCAG 2.2 asks for a contrast of 4.5.
func TestContrast(t *testing.T) {
	t.Parallel()
	for theme, colors := range themes(t) {
		for _, pair := range [][2]string{
			{"text", "back"}, {"text", "card"}, {"text", "code"}, {"soft", "back"}, {"soft", "card"}, {"link", "back"},
			{"link", "card"},
			{"error", "back"}, {"warning", "back"}, {"good", "back"}, {"error", "card"}, {"warning", "card"},
			{"info", "card"}, {"good", "card"},
			{"error", "error-back"}, {"warning", "warning-back"}, {"info", "info-back"}, {"good", "good-back"},
		} {
			if got := contrast(colors[pair[0]], colors[pair[1]]); got < 4.5 {
				t.Errorf("%s: %s on %s has a contrast of %.1f, and 4.5 is the least", theme, pair[0], pair[1], got)
			}
		}
	}
}
