package expr

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common"
	"github.com/google/cel-go/ext"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/suggest"
)

// base is the language without variables. It takes some milliseconds to make, so that all expressions share it.
var base = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(append([]cel.EnvOption{
		cel.CrossTypeNumericComparisons(true), cel.DefaultUTCTimeZone(true), cel.OptionalTypes(),
		cel.ParserRecursionLimit(100), cel.ParserExpressionSizeLimit(20_000),
		ext.Strings(), ext.Lists(ext.ListsMaxRangeSize(1_000)), ext.Sets(), ext.Math(), ext.Regex(), ext.Encoders(),
		ext.Bindings(), ext.TwoVarComprehensions(),
	}, functions()...)...)
})

// environments are those with the variables that were asked for: a handful of sets, each asked for hundreds of times.
var environments sync.Map

// language is what can be said with some variables. It keeps what was compiled: the same expressions come back for each
// seed that is tried, each second that a check looks.
type language struct {
	*cel.Env
	lock     sync.Mutex
	programs map[string]*Program
}

// maxPrograms bounds what is kept; then it begins anew.
const maxPrograms = 2000

func (l *language) load(text string) *Program {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.programs[text]
}

func (l *language) store(text string, p *Program) {
	l.lock.Lock()
	defer l.lock.Unlock()
	if l.programs == nil || len(l.programs) >= maxPrograms {
		l.programs = map[string]*Program{}
	}
	l.programs[text] = p
}

// environment returns the language with these variables, of which nothing is known beforehand.
func environment(names []string) (*language, error) {
	sorted := slices.Sorted(slices.Values(names))
	key := strings.Join(sorted, " ")
	if l, is := environments.Load(key); is {
		return l.(*language), nil
	}
	b, err := base()
	if err != nil {
		return nil, err
	}
	vars := make([]cel.EnvOption, 0, len(sorted))
	for _, name := range slices.Compact(sorted) {
		vars = append(vars, cel.Variable(name, cel.DynType))
	}
	env, err := b.Extend(vars...)
	if err != nil {
		return nil, err
	}
	l, _ := environments.LoadOrStore(key, &language{Env: env})
	return l.(*language), nil
}

// explain makes errors of what CEL finds, of which the first words are often about its grammar.
func explain(issues *cel.Issues, names []string) error {
	var all []error
	for _, i := range issues.Errors() {
		all = append(all,
			&Error{Line: max(i.Location.Line(), 1), Column: max(i.Location.Column()+1, 1), Message: meaning(i, names)})
	}
	if len(all) == 0 {
		return issues.Err()
	}
	if len(all) == 1 {
		return all[0]
	}
	return errors.Join(all...)
}

func meaning(e *common.Error, names []string) string {
	text := oneLine(e.Message)
	if name, is := strings.CutPrefix(text, "undeclared reference to '"); is {
		name, _, _ = strings.Cut(name, "'")
		return undeclared(name, names)
	}
	if rest, is := strings.CutPrefix(text, "Syntax error: "); is {
		if strings.Contains(rest, "<EOF>") {
			return "the expression ends too early"
		}
		rest, _, _ = strings.Cut(rest, " expecting ") // what follows is the grammar's names for everything
		return rest
	}
	if strings.HasPrefix(text, "found no matching overload for '_?_:_'") {
		return "both sides of ?: must have the same type: write dyn(...) around one of them"
	}
	return text
}

// undeclared returns which name might have been meant.
func undeclared(name string, names []string) string {
	if name == "filter" || name == "map" || name == "all" || name == "exists" {
		return fmt.Sprintf("%s needs a name and an expression: list.%s(x, x.kind == \"Pod\")", name, name)
	}
	known := slices.DeleteFunc(slices.Sorted(slices.Values(names)), func(n string) bool { return n == omitName })
	if meant := suggest.Nearest(name, known); meant != "" {
		return fmt.Sprintf("there is no %s: did you mean %s?", name, meant)
	}
	if len(known) == 0 {
		return fmt.Sprintf("there is no %s: no variables here", name)
	}
	return fmt.Sprintf("there is no %s: variables here are %s", name, strings.Join(known, ", "))
}
