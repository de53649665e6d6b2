package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

func some(command string, sizes ...int) (all []measurement) {
	for _, n := range sizes {
		x := float64(n)
		all = append(all, measurement{
			Command: command, Nodes: n, Wall: math.Pow(x, 1.5) / 100, CPU: x / 100, Memory: 100 << 20,
			Requests: 3 * int64(n), Sent: int64(n), Received: int64(n),
		})
	}
	return all
}

// The exponents of power laws are exact, whatever their factors are.
func TestExponents(t *testing.T) {
	want := map[string]float64{"wall time": 1.5, "processor time": 1, "memory": 0, "requests": 1, "bytes": 1}
	got := growths(some("xid", 50, 100, 1000))
	if len(got) != len(want) {
		t.Errorf("got %d measures, want %d", len(got), len(want))
	}
	for _, g := range got {
		if math.Abs(g.exponent-want[g.measure]) > 1e-9 || math.Abs(g.last-want[g.measure]) > 1e-9 {
			t.Errorf("%s: exponents %v and %v, want %v", g.measure, g.exponent, g.last, want[g.measure])
		}
	}
}

// The last line has the exponent that grows fastest, for scripts.
func TestReportEndsWithTheWorst(t *testing.T) {
	var b strings.Builder
	if err := report(&b, append(some("xid", 50, 100), some("list", 50)...)); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(b.String(), "\nworst: wall time of xid\ngrowth exponent 1.50\n") {
		t.Errorf("got\n%s", b.String())
	}
}

// After an error with the second size, the exponent is unknown, and none is reported.
func TestReportWithoutGrowth(t *testing.T) {
	var b strings.Builder
	if err := report(&b, some("list", 50)); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); strings.Contains(got, "Inf") || strings.Contains(got, "growth exponent") {
		t.Errorf("got\n%s", got)
	}
}

// The picture is well-formed XML with a curve per command and chart, even for a single size.
func TestDraw(t *testing.T) {
	for _, all := range [][]measurement{
		append(some("xid -l", 50, 100, 1000), some("list", 50, 100, 1000)...), some("xid -l", 50),
	} {
		picture := draw(all)
		if got, want := strings.Count(picture, "<polyline"), 2*len(byCommand(all)); got != want {
			t.Errorf("%d curves, want %d", got, want)
		}
		if strings.Contains(picture, "NaN") || strings.Contains(picture, "Inf") {
			t.Error("a coordinate is not a number")
		}
		decoder := xml.NewDecoder(strings.NewReader(picture))
		for {
			_, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Growth needs two or more sizes in ascending order.
func TestParseSizes(t *testing.T) {
	if got, err := parseSizes("50,100"); err != nil || len(got) != 2 {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"", "50", "100,50", "50,50", "0,50", "50,x"} {
		if _, err := parseSizes(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
