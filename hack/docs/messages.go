package main

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// messagesFile is the page of all errors, below docs.
const messagesFile = "messages.md"

// program returns the folders of what users run.
func program() []string { return []string{"cmd", "cudafault", "debugpod", "kmod", "pkg", "plugin"} }

// saying is a text of an error, and where it is made, from the repository's root.
type saying struct{ text, file string }

// messagesPage lists the errors of the program whose source is below root, by the packages that say them.
func messagesPage(root string) (string, error) {
	var p page
	p.made()
	p.line("# Every error")
	p.line("What the program says when something is wrong, from its source, for whoever looks for a message that they saw; … stands for names, " +
		"numbers, and what another message adds. Most say themselves what to do; those that need more are in [When something does not work](troubleshooting.md#messages). " +
		"A message that ends with … is put before another one, which says the cause: look for that. Single words, such as `read …: …`, are left out.")
	for _, folder := range program() {
		if err := walkPackages(
			filepath.Join(root, folder), func(dir string) error { return packageMessages(&p, root, dir) },
		); err != nil {
			return "", err
		}
	}
	return p.String(), nil
}

// walkPackages calls f for all folders.
func walkPackages(folder string, f func(dir string) error) error {
	return filepath.WalkDir(folder, func(dir string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if entry.Name() == "testdata" {
			return filepath.SkipDir
		}
		return f(dir)
	})
}

// packageMessages adds what a package says.
func packageMessages(p *page, root, dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return err
	}
	var all []saying
	about := ""
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if file.Doc != nil {
			about = new(doc.Package).Synopsis(file.Doc.Text())
		}
		from, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		for _, text := range errorTexts(file) {
			all = append(all, saying{text, filepath.ToSlash(from)})
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b saying) int {
		if c := strings.Compare(plain(a.text), plain(b.text)); c != 0 {
			return c
		}
		return strings.Compare(a.text+a.file, b.text+b.file)
	})
	at, err := filepath.Rel(root, dir)
	if err != nil {
		return err
	}
	p.line("## " + filepath.ToSlash(at))
	p.line(escape(about))
	p.row("message", "from")
	p.row("---", "---")
	for _, one := range slices.Compact(all) {
		p.row(cell(one.text), "["+path.Base(one.file)+"](../"+one.file+")")
	}
	p.end()
	return nil
}

// plain returns what a message is sorted by.
func plain(text string) string { return strings.ToLower(strings.TrimLeft(text, "…`'\": ")) }

// cell returns a message as code in a table, also when it has backquotes itself.
func cell(text string) string {
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\n", " "), "|", `\|`)
	if strings.Contains(text, "`") {
		return "`` " + text + " ``"
	}
	return "`" + text + "`"
}

// makers are the functions that make an error of a format.
var makers = regexp.MustCompile(`^(errors\.New|fmt\.Errorf|errorf|because|(\w+\.)?(fail|wrong|at))$`)

// ours are the types of errors that are not of the standard library.
var ours = regexp.MustCompile(`^(\w*|[a-z]*[a-rt-z]\.\w*)Error$`)

// errorTexts returns the texts of errors in a file: what makers are given, what types named ...Error hold, and what
// their Error methods and hints add.
func errorTexts(file *ast.File) []string {
	var all []string
	collect := func(n ast.Node) {
		for _, text := range sentences(n) {
			if says(text) {
				all = append(all, text)
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if makers.MatchString(types.ExprString(n.Fun)) {
				for _, arg := range n.Args {
					if text, _ := phrase(arg); says(text) {
						all = append(all, text)
						break // the others are what the format holds
					}
				}
			}
		case *ast.CompositeLit:
			if n.Type != nil && ours.MatchString(types.ExprString(n.Type)) {
				collect(n)
				return false
			}
		case *ast.AssignStmt:
			if name, is := n.Lhs[0].(*ast.Ident); is && name.Name == "hint" {
				collect(n.Rhs[0])
			}
		case *ast.FuncDecl:
			if n.Name.Name == "Error" && n.Recv != nil {
				collect(n)
				return false
			}
		}
		return true
	})
	return all
}

// sentences returns the phrases below a node.
func sentences(n ast.Node) []string {
	var all []string
	ast.Inspect(n, func(n ast.Node) bool {
		e, is := n.(ast.Expr)
		if !is {
			return true
		}
		text, found := phrase(e)
		if found {
			all = append(all, text)
		}
		return !found
	})
	return all
}

var verb = regexp.MustCompile(`%(\[\d+\])?[-+#0-9.]*[a-zA-Z]`)

// phrase returns a text literal, or several with + between them, with … for all that varies.
func phrase(e ast.Expr) (text string, found bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, err := strconv.Unquote(e.Value)
			return strings.ReplaceAll(verb.ReplaceAllString(text, "…"), "%%", "%"), err == nil
		}
	case *ast.CallExpr:
		if types.ExprString(e.Fun) == "fmt.Sprintf" {
			return phrase(e.Args[0])
		}
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			left, one := phrase(e.X)
			right, other := phrase(e.Y)
			if !one {
				left = "…"
			}
			if !other {
				right = "…"
			}
			return left + right, one || other
		}
	}
	return "", false
}

var word = regexp.MustCompile(`\pL{2,}`)

// says reports whether a text can be looked for: one word is that of a key, or what was done when another message came.
func says(text string) bool {
	return len(word.FindAllString(text, 2)) == 2 && strings.Contains(text, " ")
}
