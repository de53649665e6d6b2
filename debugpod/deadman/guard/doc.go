// Package guard is the dead man's work on a node. All of it runs in the node's own namespaces: Enter brings a process
// there. So paths, links, mounts and services are just those that the node itself sees.
//
// A record is a directory, Dir/RUN:
//
//	record.json    what is changed, how everything was, and which files the helper found containerd to load
//	status.json    how far it is; replaced as a whole
//	before-N       the file as it was, with all its attributes: put back by a rename, which works on a full disk too
//	after-N        the file as it will be
//	restore.sh     puts everything back by hand, and at boot
//	log            what the dead man has to say to nobody
//
// Whoever works on a record holds flock(2) on the directory.
//
// Files are opened and changed only through descriptors of their directories: see dir and walk. A path that others than
// root could redirect is refused.
package guard
