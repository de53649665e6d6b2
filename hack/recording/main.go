// Command recording converts a script(1) recording of a terminal to an animated SVG. The SVG is a few KiB of text,
// supports light and dark mode, and shows only the printed output. hack/record-run.sh uses it. (Tools such as
// charmbracelet/freeze only create still images; asciinema needs a player.)
//
//	go run ./hack/recording TYPESCRIPT TIMING > docs/run.svg
//
// The only supported escape sequence is bold, which the demo prints; record with TERM=dumb.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	slow := flag.Float64("slow", 1, "factor by which to slow down the recording")
	rows := flag.Int("rows", 34, "rows of the image")
	columns := flag.Int("columns", 100, "columns of the terminal")
	title := flag.String("title", "", "description of the image, for screen readers")
	flag.Parse()
	if err := run(flag.Args(), *slow, screen{rows: *rows, columns: *columns, title: *title}); err != nil {
		fmt.Fprintf(os.Stderr, "recording: %v\n", err)
		os.Exit(1)
	}
}

func run(files []string, slow float64, s screen) error {
	if len(files) != 2 {
		return errors.New("specify the typescript and its timing, written by script --log-out and --log-timing")
	}
	typescript, err := os.ReadFile(files[0])
	if err != nil {
		return err
	}
	timing, err := os.ReadFile(files[1])
	if err != nil {
		return err
	}
	moments, err := parse(string(typescript), string(timing), slow)
	if err != nil {
		return err
	}
	_, err = os.Stdout.WriteString(s.draw(moments))
	return err
}

// moment is output that was printed at one point in time.
type moment struct {
	at   time.Duration
	text string
}

// parse combines the bytes of a typescript with their times. It skips the first line and the lines after the last byte,
// which script itself adds.
func parse(typescript, timing string, slow float64) ([]moment, error) {
	_, text, _ := strings.Cut(typescript, "\n")
	var all []moment
	at := time.Duration(0)
	for line := range strings.Lines(timing) {
		delay, count, _ := strings.Cut(strings.TrimSpace(line), " ")
		seconds, err1 := strconv.ParseFloat(delay, 64)
		n, err2 := strconv.Atoi(count)
		if err := errors.Join(err1, err2); err != nil || n < 0 || n > len(text) {
			return nil, fmt.Errorf("timing %q does not match the typescript: %w", strings.TrimSpace(line), err)
		}
		if len(all) > 0 { // start at the first output
			at += time.Duration(seconds * slow * float64(time.Second))
		}
		all = append(all, moment{at, strings.ReplaceAll(text[:n], "\r", "")})
		text = text[n:]
	}
	return all, nil
}
