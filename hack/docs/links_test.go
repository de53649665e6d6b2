package main

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// markdown is a page: where it jumps to, and where one can jump to on it.
type markdown struct {
	links   []link
	anchors map[string]bool
}

type link struct {
	line   int
	target string
}

var (
	linkTo     = regexp.MustCompile(`\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)(?:\s+"[^"]*")?\)`)
	inlineCode = regexp.MustCompile("`[^`]*`")
	heading    = regexp.MustCompile(`^#{1,6} +(.*?) *#*$`)
	htmlLink   = regexp.MustCompile(`(?:src|href|srcset)="([^"]+)"`)
)

// read finds links and headings; what is code has none.
func read(text string) markdown {
	m := markdown{anchors: map[string]bool{}}
	fenced := false
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(strings.TrimLeft(line, " "), "```") {
			fenced = !fenced
		}
		if fenced || strings.HasPrefix(line, "    ") {
			continue
		}
		if h := heading.FindStringSubmatch(line); h != nil {
			title := linkTo.ReplaceAllStringFunc(h[1], func(l string) string { return l[1:strings.Index(l, "](")] })
			name := anchor(title)
			for n := 1; m.anchors[name]; n++ { // as GitHub tells headings of one name apart
				name = fmt.Sprintf("%s-%d", anchor(title), n)
			}
			m.anchors[name] = true
		}
		line = inlineCode.ReplaceAllString(line, "``")
		for _, found := range append(
			linkTo.FindAllStringSubmatch(line, -1), htmlLink.FindAllStringSubmatch(line, -1)...,
		) {
			m.links = append(m.links, link{i + 1, found[1]})
		}
	}
	return m
}

// pagesOf returns all pages of the repository, by their paths in it.
func pagesOf(t *testing.T) map[string]markdown {
	t.Helper()
	all := map[string]markdown{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (slices.Contains([]string{"bin", "dist", "testdata"}, entry.Name()) ||
			strings.HasPrefix(entry.Name(), ".") && path != root && entry.Name() != ".github"):
			return fs.SkipDir
		case entry.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		all[filepath.ToSlash(name)] = read(string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Every link within the repository leads to a file, and to a heading where it names one; addresses elsewhere are only
// listed (go test -v). Every page of docs can be reached from the README.
func TestLinks(t *testing.T) {
	t.Parallel()
	all := pagesOf(t)
	reached := map[string]bool{"README.md": true}
	for todo := []string{"README.md"}; len(todo) > 0; todo = todo[1:] {
		for _, l := range all[todo[0]].links {
			to, _ := target(todo[0], l.target)
			for name := range all { // a link to a folder shows its pages
				if (name == to || filepath.ToSlash(filepath.Dir(name)) == to) && !reached[name] {
					reached[name] = true
					todo = append(todo, name)
				}
			}
		}
	}
	for name, page := range all {
		if strings.HasPrefix(name, "docs/") && !reached[name] {
			t.Errorf("%s: no page leads there from the README", name)
		}
		for _, l := range page.links {
			if address, err := url.Parse(l.target); err == nil && address.Scheme != "" {
				t.Logf("elsewhere: %s (%s:%d)", l.target, name, l.line)
				if address.Scheme != "https" {
					t.Errorf("%s:%d: %s is not https", name, l.line, l.target)
				}
				continue
			}
			to, part := target(name, l.target)
			info, err := os.Stat(filepath.Join(root, filepath.FromSlash(to)))
			if err != nil {
				t.Errorf("%s:%d: %s leads nowhere", name, l.line, l.target)
				continue
			}
			if part != "" && (info.IsDir() || !all[to].anchors[part]) {
				t.Errorf("%s:%d: %s has no heading #%s", name, l.line, to, part)
			}
		}
	}
}

// target returns the path in the repository that a link on a page leads to, and the heading there.
func target(page, link string) (path, part string) {
	file, part, _ := strings.Cut(link, "#")
	if file == "" {
		return page, part
	}
	if unescaped, err := url.PathUnescape(file); err == nil {
		file = unescaped
	}
	return filepath.ToSlash(filepath.Join(filepath.Dir(page), file)), part
}

func TestReadMarkdown(t *testing.T) {
	t.Parallel()
	m := read(
		"# A `b` c\n## A b c\n[x](y.md#z) `[no](no)`\n    [no](no)\n```\n[no](no)\n# no\n```\n![alt [1]](p.png \"t\")\n<img src=\"q.svg\">\n",
	)
	var got []string
	for _, l := range m.links {
		got = append(got, fmt.Sprint(l.line, " ", l.target))
	}
	if want := []string{"3 y.md#z", "9 p.png", "10 q.svg"}; !slices.Equal(got, want) {
		t.Errorf("links %q, wanted %q", got, want)
	}
	if len(m.anchors) != 2 || !m.anchors["a-b-c"] || !m.anchors["a-b-c-1"] {
		t.Errorf("anchors %v", m.anchors)
	}
}
