package main

import (
	"bytes"
	"fmt"
	"path"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// commandPages returns a page for each top-level command, including its subcommands, and an index. (cobra's generator
// writes a page for each subcommand and repeats kubectl's 25 connection flags on every page.)
func commandPages(root *cobra.Command) map[string]string {
	all := map[string]string{}
	var index page
	index.made()
	index.line("# Commands")
	index.line("The `--help` text of every command. Run each command as `kubectl gpu-fault COMMAND`.")
	index.row("command", "what it does")
	index.row("---", "---")
	for _, verb := range root.Commands() {
		if !verb.IsAvailableCommand() || verb.Name() == "help" {
			continue
		}
		name := verb.Name() + ".md"
		var p page
		p.made()
		p.command(verb, 1)
		p.line(
			"[All commands](README.md), and the [flags that all commands have](README.md#flags-that-all-commands-have).",
		)
		all[path.Join(commandsFolder, name)] = p.String()

		for _, c := range withSubCommands(verb) {
			title := strings.TrimPrefix(c.CommandPath(), root.CommandPath()+" ")
			index.row(fmt.Sprintf("[%s](%s#%s)", title, name, anchor(title)), escape(c.Short))
		}
	}
	index.end()
	index.line("## Flags that all commands have")
	index.flags(root.PersistentFlags())
	index.line(lastParagraph(optionsOf(root)))
	all[path.Join(commandsFolder, "README.md")] = index.String()
	return all
}

func withSubCommands(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			all = append(all, withSubCommands(sub)...)
		}
	}
	return all
}

// command writes the section for a command, followed by those for its subcommands.
func (p *page) command(cmd *cobra.Command, depth int) {
	title := strings.TrimPrefix(cmd.CommandPath(), cmd.Root().CommandPath()+" ")
	p.line(strings.Repeat("#", depth) + " " + title)
	if long := strings.TrimSpace(cmd.Long); long != "" {
		p.prose(long)
	} else {
		p.line(escape(cmd.Short) + ".")
	}
	usage := cmd.UseLine()
	if cmd.HasAvailableSubCommands() {
		usage += "\n" + cmd.CommandPath() + " COMMAND [flags]"
	}
	p.code("text", usage)
	if cmd.Example != "" {
		p.line("Examples:")
		p.code("sh", unindent(cmd.Example))
	}
	p.flags(cmd.LocalNonPersistentFlags())
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			p.command(sub, depth+1)
		}
	}
}

// flags writes a table of flags, or nothing if there are none.
func (p *page) flags(flags *pflag.FlagSet) {
	head := false
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if !head {
			p.row("flag", "", "default", "what it does")
			p.row("---", "---", "---", "---")
			head = true
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		kind, text := pflag.UnquoteUsage(f)
		p.row(name, escape(kind), defaultOf(f), escape(text))
	})
	if head {
		p.end()
	}
}

// defaultOf returns the default of a flag, or "" if it is obvious or depends on the machine.
func defaultOf(f *pflag.Flag) string {
	switch f.DefValue {
	case "", "false", "0", "0s", "[]", "none":
		return ""
	}
	if f.Name == "cache-dir" {
		return "`$HOME/.kube/cache`"
	}
	return "`" + f.DefValue + "`"
}

// optionsOf returns the output of the command `options`.
func optionsOf(root *cobra.Command) string {
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetArgs([]string{"options"})
	if err := root.Execute(); err != nil {
		return err.Error() // a test checks the page for errors
	}
	return out.String()
}

func lastParagraph(text string) string {
	text = strings.TrimSpace(text)
	return escape(strings.ReplaceAll(text[strings.LastIndex(text, "\n\n")+2:], "\n", " "))
}
