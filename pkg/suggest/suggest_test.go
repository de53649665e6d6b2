package suggest

import "testing"

// The nearest name is meant; one that has little in common is not, and one letter is never meant by another.
func TestNearest(t *testing.T) {
	t.Parallel()
	for wrote, want := range map[string]string{
		"nmae": "name", "Names": "names", "nod": "node", "p": "p", "x": "", "": "", "something else": "",
		"KIND": "kind",
	} {
		if got := Nearest(wrote, []string{"p", "name", "names", "kind", "node"}); got != want {
			t.Errorf("%q means %q, wanted %q", wrote, got, want)
		}
	}
}
