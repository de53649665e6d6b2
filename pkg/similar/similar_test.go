package similar

import "testing"

// A wrong distance would name the wrong node, kind or check in an error message.
func TestDistance(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"gpu-1", "gpu-1", 0}, {"", "gpu", 3}, {"gpu-1", "gpu-2", 1}, {"gpu-1", "gpu-11", 1},
		{"kitten", "sitting", 3}, {"ab", "ba", 2},
	} {
		if got, back := Distance(test.a, test.b), Distance(test.b, test.a); got != test.want || back != test.want {
			t.Errorf("from %q to %q it is %d, back %d, wanted %d", test.a, test.b, got, back, test.want)
		}
	}
}

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
