package doctor

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// FuzzCommand verifies that an argument is always a single word, regardless of its content, both in the local shell and
// in the remote shell of ssh.
func FuzzCommand(f *testing.F) {
	for _, seed := range []string{
		"p", "", "-x", "a b", `'`, `"`, "$(id)", "`id`", "a\\", "!x", "#", "~", "*", "{a,b}", "é", "a\nb", "&&", "=ls",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		line := shell.Command("echo %s end", text)
		if line == shell.LeftOut {
			return
		}
		if words, _, err := shellWords(line); err != nil || !slices.Equal(words, []string{"echo", text, "end"}) {
			t.Errorf("%q became %q: %q %v", text, line, words, err)
		}
		words, _, err := shellWords(shell.OnHost("gpu-1", "echo %s end", text))
		if err != nil || len(words) < 3 {
			t.Fatalf("%q became %q on a node: %v", text, words, err)
		}
		if words, _, err = shellWords(strings.Join(words[2:], " ")); err != nil ||
			!slices.Equal(words, []string{"echo", text, "end"}) {
			t.Errorf("%q became %q on a node: %v", text, words, err)
		}
	})
}

// shellWords splits a line like a shell that does not support comments, such as zsh. bare contains the unquoted
// characters, and those that are special even in quotes. An operator (| & ; < >) is a word of its own.
func shellWords(line string) (words []string, bare string, err error) {
	var word, outside strings.Builder
	inWord := false
	end := func() {
		if inWord {
			words = append(words, word.String())
		}
		word.Reset()
		inWord = false
	}
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case c == '\'':
			n := strings.IndexByte(line[i+1:], '\'')
			if n < 0 {
				return nil, "", errors.New("a quote does not end")
			}
			word.WriteString(line[i+1 : i+1+n])
			inWord, i = true, i+1+n
		case c == '"':
			n := strings.IndexByte(line[i+1:], '"')
			if n < 0 {
				return nil, "", errors.New("a double quote does not end")
			}
			if text := line[i+1 : i+1+n]; strings.ContainsAny(text, "$`\\!") {
				return nil, "", errors.New("a double quote has what a shell obeys")
			}
			word.WriteString(line[i+1 : i+1+n])
			inWord, i = true, i+1+n
		case c == '\\':
			if i++; i == len(line) {
				return nil, "", errors.New("it ends with a backslash")
			}
			word.WriteByte(line[i])
			inWord = true
		case c == ' ':
			end()
			outside.WriteByte(c)
		case strings.IndexByte("|&;<>", c) >= 0:
			end()
			words = append(words, string(c))
			outside.WriteByte(c)
		default:
			word.WriteByte(c)
			outside.WriteByte(c)
			inWord = true
		}
	}
	end()
	return words, outside.String(), nil
}

// evil is in all that the hostile clusters of these tests say.
const evil = "EVIL"

// checkLine returns what is wrong with a command of a fix: something of a hostile cluster is outside of quotes, or it
// works on a node without being sent there.
func checkLine(line string) error {
	words, bare, err := shellWords(line)
	switch {
	case err != nil:
		return err
	case strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return errors.New("it has control characters")
	case strings.Contains(bare, evil):
		return errors.New("data stands outside of quotes")
	case strings.ContainsAny(bare, "$`\\!~") || strings.Contains(line, "%!"):
		return errors.New("a shell would replace something in it")
	case len(words) == 0:
		return errors.New("the configuration space is empty")
	case slices.Contains(words, ">") || slices.Contains(words, "<"):
		return errors.New("it reads or writes a file of the user's own machine")
	case strings.HasPrefix(words[0], "#"):
		return nil
	}
	for i, word := range words {
		if strings.HasPrefix(word, "-") && strings.Contains(word[:min(len(word), 12)], evil) {
			return errors.New("data is taken for a flag")
		}
		if i > 0 && !slices.Contains([]string{"|", "&", ";"}, words[i-1]) || word == "&" {
			continue
		}
		if !slices.Contains(
			[]string{
				"kubectl",
				"helm",
				"ssh",
				"grep",
				"crane",
				"jq",
				"printf",
				"talosctl",
				"oc",
				"aws",
				"gcloud",
				"az",
				"eksctl",
				"skopeo",
			},
			word,
		) {
			return fmt.Errorf("%s would run on the user's own machine", word)
		}
	}
	if words[0] == "ssh" {
		if len(words) < 3 || words[1] != "NODE" && !shell.IsSubdomain(words[1]) {
			return errors.New("it has no node")
		}
		if _, bare, err := shellWords(strings.Join(words[2:], " ")); err != nil || strings.Contains(bare, evil) {
			return fmt.Errorf("the shell of the node would obey data: %v", err)
		}
	}
	return nil
}

// TestFixesObeyNobody verifies that no command in a fix contains an unquoted name from the cluster, treats a name as a
// flag, or changes the local machine instead of a node. It replaces names in all clusters of the corpus with hostile
// values.
func TestFixesObeyNobody(t *testing.T) {
	t.Parallel()
	names :=
		regexp.MustCompile(
			`(^|\.)(ObjectMeta\.(Name|Namespace)|NodeName|OwnerReferences\.Name|InvolvedObject\.(Name|Namespace)|Logs\.(Pod|Namespace)|HelmReleases\.(Name|Namespace)` +
				`|Runs\.(ID|Revert)|Targets\.(Name|Namespace)|ResourceClaimName|ResourceClaimTemplateName)$`,
		)
	others :=
		regexp.MustCompile(
			`(^|\.)(OwnerReferences\.Kind|InvolvedObject\.Kind|ClaimName|ServiceAccountName|KernelVersion|KernelRelease|Kernel|Unit|ConfigPath|Path|FabricManager` +
				`|ChartVersion|Image|Containers\.Name|ContainerStatuses\.Name|InitContainerStatuses\.Name|Taints\.(Key|Value)|RuntimeClassName|Handler|DeviceID|PodCIDRs|Runs\.Revert|Labels\[[^\]]*\]|OS\[[^\]]*\]|DriverVersion)$`,
		)
	owners := regexp.MustCompile(
		`(^|\.)(OwnerReferences\.(Name|Kind)|ClaimName|ServiceAccountName|InvolvedObject\.Name|KernelVersion|KernelRelease|Kernel|Unit|Taints\.Key)$`,
	)
	suffix := func(text string) func(string) string { return func(s string) string { return s + text } }
	commands, broken := 0, map[string]bool{}
	for number, hostile := range []struct {
		name   string
		where  *regexp.Regexp
		change func(string) string
	}{
		{"as it is", regexp.MustCompile(`^$`), suffix("")},
		{"names", names, suffix(`;$(` + evil + `)'"` + "`" + evil + "`")},
		{"names as flags", names, func(s string) string { return "--" + evil + "=" + s }},
		{"values", others, suffix(`;$(` + evil + `)'"` + "`" + evil + "`")},
		{"owners", owners, suffix(`';$(` + evil + `)`)},
		{"lines of values", owners, suffix("\n" + evil + "\n")},
		{"values as flags", owners, func(s string) string { return "--" + evil + "=" + s }},
		{
			"words of events", regexp.MustCompile(`(Events|State|Waiting|Terminated)\.Message$`),
			func(s string) string { return strings.ReplaceAll(s, `"nvidia`, `"nvidia;$(`+evil+`)'`) },
		},
	} {
		fits := map[string]bool{}
		for _, s := range sampled(slices.Concat(readCorpus(t, "positive"), readCorpus(t, "negative")), number) {
			rewrite(reflect.ValueOf(s.snapshot).Elem(), "", func(path string) bool {
				fit, known := fits[path]
				if !known {
					fit = hostile.where.MatchString(path)
					fits[path] = fit
				}
				return fit
			}, hostile.change)
			rename(s.snapshot, hostile.where, hostile.change)
			for _, f := range Examine(s.snapshot, Options{}).Items {
				for _, line := range f.Fix.Commands {
					commands++
					if err := checkLine(line); err != nil && !broken[hostile.name+f.ID] {
						broken[hostile.name+f.ID] = true
						t.Errorf("%s, hostile %s: a command of %s: %v\n%s", s.name, hostile.name, f.ID, err, line)
					}
				}
			}
		}
	}
	if commands < 1000 {
		t.Errorf("only %d commands were looked at: the hostile clusters are not recognized any more", commands)
	}
}

// sampled returns every fourth sample if short tests are requested. Each number selects different samples, so that a
// test that changes the corpus in several ways still uses all of it.
func sampled(all []sample, number int) []sample {
	if !testing.Short() {
		return all
	}
	var some []sample
	for i := number % 4; i < len(all); i += 4 {
		some = append(some, all[i])
	}
	return some
}

// rewrite changes all strings in a value whose path matches. A path consists of field names, and map keys in brackets.
func rewrite(v reflect.Value, path string, where func(path string) bool, change func(string) string) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() && v.Kind() == reflect.Pointer {
			rewrite(v.Elem(), path, where, change)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				rewrite(v.Field(i), strings.TrimPrefix(path+"."+v.Type().Field(i).Name, "."), where, change)
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			rewrite(v.Index(i), path, where, change)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			value := reflect.New(v.Type().Elem()).Elem()
			value.Set(v.MapIndex(key))
			rewrite(value, fmt.Sprintf("%s[%v]", path, key), where, change)
			v.SetMapIndex(key, value)
		}
	case reflect.String:
		if v.CanSet() && v.String() != "" && where(path) {
			v.SetString(change(v.String()))
		}
	}
}

// rename changes names that are not fields: the keys of the nodes that were read, and the names of objects without a
// type.
func rename(s *snapshot.Snapshot, where *regexp.Regexp, change func(string) string) {
	if !where.MatchString("ObjectMeta.Name") {
		return
	}
	hosts := map[string]*api.Diagnosis{}
	for name, host := range s.Hosts {
		hosts[change(name)] = host
	}
	s.Hosts = hosts
	for i := range s.ClusterPolicies {
		s.ClusterPolicies[i].SetName(change(s.ClusterPolicies[i].GetName()))
	}
	for i := range s.NVIDIADrivers {
		s.NVIDIADrivers[i].SetName(change(s.NVIDIADrivers[i].GetName()))
	}
	for i := range s.ComputeDomains {
		s.ComputeDomains[i].SetName(change(s.ComputeDomains[i].GetName()))
		s.ComputeDomains[i].SetNamespace(change(s.ComputeDomains[i].GetNamespace()))
	}
}

// TestCommandsAreMadeInOnePlace verifies that all checks use the package shell, because commands that are built in
// another way are not quoted.
func TestCommandsAreMadeInOnePlace(t *testing.T) {
	t.Parallel()
	program := regexp.MustCompile("^[\"`](kubectl|helm|ssh|sudo|talosctl|crane) ")
	var files []string
	for _, pattern := range []string{"*.go", "*/*.go", "*/*/*.go"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) < 100 {
		t.Fatalf("only %d sources were found", len(files))
	}
	isCommand := func(e ast.Expr) bool {
		l, ok := e.(*ast.BasicLit)
		return ok && l.Kind == token.STRING && program.MatchString(l.Value)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "shell/") {
			continue
		}
		set := token.NewFileSet()
		tree, err := parser.ParseFile(set, file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			switch x := n.(type) {
			case *ast.BinaryExpr:
				if isCommand(x.X) {
					t.Errorf("%s: a command is put together with +: use command or onHost, which quote",
						set.Position(x.Pos()))
				}
			case *ast.CallExpr:
				if f, ok := x.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Sprintf" && len(x.Args) > 0 &&
					isCommand(x.Args[0]) {
					t.Errorf("%s: a command is put together with Sprintf: use command or onHost, which quote",
						set.Position(x.Pos()))
				}
			}
			return true
		})
	}
}

// TestEventsMakeNoObjects protects clusters against those who may write events: their words do not become an object
// that an admin creates, and a class that keeps pods apart from the node is not given to the NVIDIA runtime.
func TestEventsMakeNoObjects(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, message string
		want          string // in a command
		severity      finding.Severity
	}{
		{
			"NVIDIA's", `pods "x" is forbidden: pod rejected: RuntimeClass "nvidia" not found, nvidia.com/gpu`,
			`'metadata: {name: nvidia}' 'handler: nvidia' | kubectl create -f -`, finding.Error,
		},
		{
			"NVIDIA's of another name", `pods "x" is forbidden: pod rejected: RuntimeClass "nvidia-cdi" not found`,
			`{name: nvidia-cdi}`, finding.Error,
		},
		{
			"a second object",
			"pods \"x\" is forbidden: pod rejected: RuntimeClass \"nvidia\\nhandler: runc\\n---\\nkind: ClusterRoleBinding\\n#\" not found",
			"", "",
		},
		{
			"another object behind a real line end",
			"pods \"x\" is forbidden: pod rejected: RuntimeClass \"nvidia\nhandler: runc\" not found", "", "",
		},
		{"a sandbox", `pods "x" is forbidden: pod rejected: RuntimeClass "gvisor" not found`, "", finding.Info},
		{
			"a sandbox for GPUs",
			`pods "x" is forbidden: pod rejected: RuntimeClass "kata-qemu" not found, nvidia.com/gpu`, "",
			finding.Error,
		},
	} {
		n := handlerNode("a", "nvidia", "nvidia-cdi", "gvisor")
		e := corev1.Event{
			Reason: "FailedCreate", Type: corev1.EventTypeWarning, Message: test.message,
			InvolvedObject: corev1.ObjectReference{Kind: "ReplicaSet", Namespace: "team", Name: "web"},
		}
		e.LastTimestamp.Time = classTime.Add(-time.Minute)
		s := &snapshot.Snapshot{
			Meta: snapshot.Meta{
				Created: classTime,
				APIOnly: true,
			}, Nodes: []corev1.Node{n}, Events: []corev1.Event{e},
		}
		var severity finding.Severity
		var commands string
		for _, f := range Examine(s, Options{}).Items {
			if f.ID == "rc.handler-mismatch" {
				severity = f.Severity
			}
			commands += strings.Join(f.Fix.Commands, "\n")
		}
		if severity != test.severity || test.want == "" && strings.Contains(commands, "kubectl create") ||
			!strings.Contains(commands, test.want) {
			t.Errorf("%s: severity %q, want %q; commands %s, want %q", test.name, severity, test.severity, commands,
				test.want)
		}
	}
}

var classTime = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// handlerNode returns a Ready node with one GPU, whose runtime says which handlers it has.
func handlerNode(name string, handlers ...string) (n corev1.Node) {
	n.Name, n.Labels = name, map[string]string{"nvidia.com/gpu.present": "true"}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, h := range handlers {
		n.Status.RuntimeHandlers = append(n.Status.RuntimeHandlers, corev1.NodeRuntimeHandler{Name: h})
	}
	return n
}

// TestClassesOfMixedClusters protects the nodes that are well: a RuntimeClass that fits some nodes is not deleted
// because another node calls the handler otherwise, and not while nobody knows.
func TestClassesOfMixedClusters(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		others  []corev1.Node
		deletes bool
		want    string // root
	}{
		{"no other node", nil, true, "rc.handler-mismatch"},
		{"another node has the handler", []corev1.Node{handlerNode("b", "nvidia")}, false, "rt.handler-missing"},
		{"another node does not say", []corev1.Node{handlerNode("b")}, false, "rc.handler-mismatch"},
	} {
		class := "nvidia"
		pod := corev1.Pod{
			Spec:   corev1.PodSpec{NodeName: "a", RuntimeClassName: &class},
			Status: corev1.PodStatus{Phase: corev1.PodPending},
		}
		pod.Namespace, pod.Name, pod.CreationTimestamp.Time = "team", "p", classTime.Add(-time.Hour)
		s := &snapshot.Snapshot{
			Meta: snapshot.Meta{Created: classTime, APIOnly: true}, Pods: []corev1.Pod{pod},
			Nodes: append([]corev1.Node{handlerNode("a", "nvidia-container-runtime")}, test.others...),
		}
		s.RuntimeClasses = []nodev1.RuntimeClass{{ObjectMeta: metav1.ObjectMeta{Name: class}, Handler: "nvidia"}}
		report := Examine(s, Options{})
		deletes := false
		for _, f := range report.Items {
			deletes = deletes || strings.Contains(strings.Join(f.Fix.Commands, "\n"), "delete runtimeclass")
		}
		if roots := corpusRoots(report); deletes != test.deletes || !slices.Contains(roots, test.want) {
			t.Errorf("%s: deletes the class: %t, want %t; roots %v, want %s", test.name, deletes, test.deletes, roots,
				test.want)
		}
	}
}

// TestFixesGrantNothing protects clusters against advice that opens more than the fault needs: no command of any fix in
// the corpus binds a wide role, makes a namespace of users privileged or opens devices to all containers.
func TestFixesGrantNothing(t *testing.T) {
	t.Parallel()
	for _, s := range readCorpus(t, "positive") {
		for _, f := range Examine(s.snapshot, Options{}).Items {
			for _, line := range f.Fix.Commands {
				if words.ContainsAny(line, []string{"rolebinding", "setsebool", "enforce=privileged"}) &&
					!strings.Contains(line, "kubectl get ") &&
					!strings.HasPrefix(line, "kubectl label namespace gpu-operator ") &&
					!strings.HasPrefix(line, "kubectl label namespace kube-system ") {
					t.Errorf("%s: %s grants too much: %s", s.name, f.ID, line)
				}
			}
		}
	}
}
