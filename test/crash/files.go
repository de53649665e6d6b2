package main

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"
)

// watchedPaths are what a fault may touch on a node. Of the last one only what has our name counts.
var watchedPaths = []string{
	"/etc/containerd", "/etc/containerd-decoy.toml", "/var/lib/k8s-containerd", "/var/lib/gpu-fault",
	"/etc/systemd/system",
}

// tree is files of a node, by their paths.
type tree map[string]file

// file is all that a restore has to bring back. A folder's time is left out: it changes with every file that is made in
// it.
type file struct {
	Mode     fs.FileMode
	UID, GID uint32
	Modified time.Time // to the nanosecond; zero for folders
	Data     string
	Link     string
	Xattrs   map[string]string
}

// differences says in a line each what is not as it was.
func (was tree) differences(now tree) []string {
	var lines []string
	for path, f := range was {
		if g, there := now[path]; !there {
			lines = append(lines, path+" is gone")
		} else {
			lines = append(lines, f.differences(path, g)...)
		}
	}
	for path := range now {
		if _, there := was[path]; !there {
			lines = append(lines, path+" is new")
		}
	}
	slices.Sort(lines)
	return lines
}

func (f file) differences(path string, g file) []string {
	var lines []string
	say := func(what string, was, now any) {
		lines = append(lines, fmt.Sprintf("%s: %s was %v, is %v", path, what, was, now))
	}
	if f.Mode != g.Mode {
		say("mode", f.Mode, g.Mode)
	}
	if f.UID != g.UID || f.GID != g.GID {
		say("owner", fmt.Sprint(f.UID, ":", f.GID), fmt.Sprint(g.UID, ":", g.GID))
	}
	if !f.Modified.Equal(g.Modified) {
		say("time", f.Modified.Format(time.RFC3339Nano), g.Modified.Format(time.RFC3339Nano))
	}
	if f.Data != g.Data {
		say("content", fmt.Sprint(len(f.Data), " bytes"), fmt.Sprintf("%d bytes and different", len(g.Data)))
	}
	if f.Link != g.Link {
		say("link", f.Link, g.Link)
	}
	if !maps.Equal(f.Xattrs, g.Xattrs) {
		say("extended attributes", f.Xattrs, g.Xattrs)
	}
	return lines
}
