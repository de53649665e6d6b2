// Package guard implements the dead man's switch on a node. All its code runs in the host namespaces, which Enter
// joins,
// so it sees the paths, links, mounts and services on the node.
//
// A record is a directory, Dir/RUN:
//
//	record.json    the change, the original state, and the files that the helper found containerd to load
//	status.json    the status; always replaced as a whole
//	before-N       the original file with all its attributes: restored by a rename, which also works on a full disk
//	after-N        the changed file
//	restore.sh     restores all files, manually or at boot
//	log            the log of the dead man's switch
//
// An encrypted record has the same files, encrypted, but no restore.sh and no log; see Host.Key.
//
// A process that works on a record holds flock(2) on its directory.
//
// Files are opened and changed only through descriptors of their directories; see dir and walk. A path that a user
// other than root could redirect is refused.
package guard
