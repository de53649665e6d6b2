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

// base is the environment without variables. Creating it takes several milliseconds, so all expressions share it.
var base = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(append([]cel.EnvOption{
		cel.CrossTypeNumericComparisons(true), cel.DefaultUTCTimeZone(true), cel.OptionalTypes(),
		cel.ParserRecursionLimit(100), cel.ParserExpressionSizeLimit(20_000),
		ext.Strings(), ext.Lists(ext.ListsMaxRangeSize(1_000)), ext.Sets(), ext.Math(), ext.Regex(), ext.Encoders(),
		ext.Bindings(), ext.TwoVarComprehensions(),
	}, functions()...)...)
})

// environments caches the environments by their variables: there are only a few sets, each used hundreds of times.
var environments sync.Map

// language is an environment with certain variables. It caches compiled expressions, because the same ones are used for
// each seed and for each evaluation of a check.
type language struct {
	*cel.Env
	lock     sync.Mutex
	programs map[string]*Program
}

// maxPrograms limits the cache, which is cleared when it is full.
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

// environment returns the language with these variables, whose types are dynamic.
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

// explain converts CEL's issues to errors, omitting details of its grammar.
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
			return "unexpected end of the expression"
		}
		rest, _, _ = strings.Cut(rest, " expecting ") // the rest contains grammar symbols
		return rest
	}
	if strings.HasPrefix(text, "found no matching overload for '_?_:_'") {
		return "both sides of ?: must have the same type: wrap one of them in dyn(...)"
	}
	return text
}

// undeclared suggests the most similar name.
func undeclared(name string, names []string) string {
	if name == "filter" || name == "map" || name == "all" || name == "exists" {
		return fmt.Sprintf("%s requires a name and an expression: list.%s(x, x.kind == \"Pod\")", name, name)
	}
	known := slices.DeleteFunc(slices.Sorted(slices.Values(names)), func(n string) bool { return n == omitName })
	if meant := suggest.Nearest(name, known); meant != "" {
		return fmt.Sprintf("unknown name %s; did you mean %s?", name, meant)
	}
	if len(known) == 0 {
		return fmt.Sprintf("unknown name %s: no variables are available here", name)
	}
	return fmt.Sprintf("unknown name %s; supported variables: %s", name, strings.Join(known, ", "))
}
