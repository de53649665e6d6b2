package inspect

import (
	"testing"
	"testing/fstest"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

func TestReadJournald(t *testing.T) {
	byDefault := api.Journald{ReadKMsg: "yes", ForwardKMsg: "no", Storage: "auto"}
	with := func(change func(*api.Journald)) api.Journald {
		j := byDefault
		change(&j)
		return j
	}
	for name, tc := range map[string]struct {
		root map[string]string
		proc map[string]string
		want api.Journald
	}{
		"nothing": {nil, nil, byDefault},
		"running": {
			nil, map[string]string{"1/comm": "systemd\n", "400/comm": "systemd-journal\n"},
			with(func(j *api.Journald) { j.Running = true }),
		},
		"the distribution's file, all in comments": {
			map[string]string{"etc/systemd/journald.conf": "[Journal]\n#Storage=none\n;ReadKMsg=no\n"}, nil, byDefault,
		},
		"auto with a directory": {
			map[string]string{"var/log/journal/0123/system.journal": ""}, nil,
			with(func(j *api.Journald) { j.IsPersistent = true }),
		},
		"volatile with a directory": {map[string]string{
			"var/log/journal/x/y": "", "etc/systemd/journald.conf": "[Journal]\nStorage=volatile\n",
		}, nil,
			with(func(j *api.Journald) { j.Storage = "volatile" })},
		"persistent": {map[string]string{"etc/systemd/journald.conf": "[Journal]\n Storage = persistent \n"}, nil,
			with(func(j *api.Journald) { j.Storage, j.IsPersistent = "persistent", true })},
		"another section": {
			map[string]string{"etc/systemd/journald.conf": "[Upload]\nStorage=none\n[Journal]\n[Other]\nReadKMsg=no\n"},
			nil, byDefault,
		},
		"the last one counts": {
			map[string]string{"etc/systemd/journald.conf": "[Journal]\nReadKMsg=no\nReadKMsg=on\n"}, nil, byDefault,
		},
		"not understood": {
			map[string]string{
				"etc/systemd/journald.conf": "[Journal]\nReadKMsg=perhaps\nStorage=Auto\nForwardToKMsg=\n",
			},
			nil, byDefault,
		},
		"a continued line": {
			map[string]string{"etc/systemd/journald.conf": "[Journal]\nReadKMsg=\\\nno\n"}, nil,
			with(func(j *api.Journald) { j.ReadKMsg = "no" }),
		},
		"main file: /etc before /usr/lib": {map[string]string{
			"etc/systemd/journald.conf":     "[Journal]\nStorage=none\n",
			"usr/lib/systemd/journald.conf": "[Journal]\nReadKMsg=no\n",
		}, nil, with(func(j *api.Journald) { j.Storage = "none" })},
		"main file in /usr/lib": {
			map[string]string{"usr/lib/systemd/journald.conf": "[Journal]\nReadKMsg=no\n"}, nil,
			with(func(j *api.Journald) { j.ReadKMsg = "no" }),
		},
		"drop-ins: the later name wins, wherever it lies": {map[string]string{
			"etc/systemd/journald.conf":                  "[Journal]\nStorage=none\n",
			"etc/systemd/journald.conf.d/10-a.conf":      "[Journal]\nForwardToKMsg=yes\nStorage=volatile\n",
			"usr/lib/systemd/journald.conf.d/90-b.conf":  "[Journal]\nForwardToKMsg=no\n",
			"run/systemd/journald.conf.d/50-c.conf":      "[Journal]\nReadKMsg=false\n",
			"run/systemd/journald.conf.d/99-ignored.txt": "[Journal]\nStorage=none\n",
		}, nil, with(func(j *api.Journald) { j.ReadKMsg, j.Storage = "no", "volatile" })},
		"drop-ins: /etc overrides the same name": {map[string]string{
			"etc/systemd/journald.conf.d/10-a.conf":     "[Journal]\nReadKMsg=yes\n",
			"run/systemd/journald.conf.d/10-a.conf":     "[Journal]\nReadKMsg=no\n",
			"usr/lib/systemd/journald.conf.d/10-a.conf": "[Journal]\nStorage=none\n",
		}, nil, byDefault},
		"drop-ins: masked by an empty file": {map[string]string{
			"etc/systemd/journald.conf.d/10-a.conf":     "",
			"usr/lib/systemd/journald.conf.d/10-a.conf": "[Journal]\nStorage=none\n",
		}, nil, byDefault},
		"kernel command line": {map[string]string{"etc/systemd/journald.conf": "[Journal]\nForwardToKMsg=no\n"},
			map[string]string{"cmdline": "quiet systemd.journald.forward_to_kmsg panic=1\n"},
			with(func(j *api.Journald) { j.ForwardKMsg = "yes" })},
		"kernel command line, no": {
			map[string]string{"etc/systemd/journald.conf": "[Journal]\nForwardToKMsg=yes\n"},
			map[string]string{"cmdline": "systemd.journald.forward-to-kmsg=0"}, byDefault,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := readJournald(mapFS(tc.root), mapFS(tc.proc)); got != tc.want {
				t.Errorf("got %+v\nwant %+v", got, tc.want)
			}
		})
	}
}

func mapFS(files map[string]string) fstest.MapFS {
	m := fstest.MapFS{}
	for name, text := range files {
		m[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return m
}

func FuzzJournald(f *testing.F) {
	f.Add("[Journal]\nReadKMsg=no\nForwardToKMsg=1\nStorage=none\n", "systemd.journald.forward_to_kmsg=1")
	f.Fuzz(func(t *testing.T, file, cmdline string) {
		j := journald{ReadKMsg: "yes", ForwardKMsg: "no", Storage: "auto"}
		j.apply(file)
		j.applyCommandLine(cmdline)
		valid := map[string]bool{"yes": true, "no": true}
		if !valid[j.ReadKMsg] || !valid[j.ForwardKMsg] || j.Storage == "" {
			t.Errorf("%+v", j)
		}
	})
}
