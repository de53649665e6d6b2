package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/gpu-fault/kubectl-gpu-fault/test/peers"
)

const (
	databasePort = "25432"
	database     = "nvsentinel" // also the database's user
)

// startDatabase starts a PostgreSQL that only the nodes and the machine reach, with the tables of NVSentinel's schema.
func (p *peer) startDatabase(ctx context.Context) error {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) == 0 {
		return fmt.Errorf("not found in /usr/lib/postgresql; install Debian's package postgresql")
	}
	bin := filepath.Dir(found[len(found)-1])
	dir, err := os.MkdirTemp("", "gpu-fault-nvsentinel-db-")
	if err != nil {
		return err
	}
	p.databaseDir = dir
	if _, err := peers.Output(exec.CommandContext(ctx, "chown", "postgres:", dir)); err != nil {
		return err
	}
	as := func(name string, args ...string) *exec.Cmd { // PostgreSQL refuses to run as root
		cmd := exec.CommandContext(ctx, "setpriv", append([]string{
			"--reuid=postgres", "--regid=postgres", "--clear-groups", filepath.Join(bin, name),
		}, args...)...)
		cmd.Dir = dir
		return cmd
	}
	data := filepath.Join(dir, "data")
	if _, err := peers.Output(as("initdb", "-D", data, "-U", database, "--auth=trust", "--no-sync")); err != nil {
		return err
	}
	rule := fmt.Sprintf("host all all %s/24 trust\n", p.host)
	if err := os.WriteFile(filepath.Join(data, "pg_hba.conf"), []byte(rule), 0o644); err != nil {
		return err
	}
	server := as("postgres", "-D", data, "-c", "listen_addresses="+p.host, "-c", "port="+databasePort,
		"-c", "unix_socket_directories=", "-c", "fsync=off")
	server.Cancel = func() error { return server.Process.Signal(syscall.SIGQUIT) } // with its processes
	if err := p.start(server, "postgres"); err != nil {
		return err
	}
	sql := func(base string, args ...string) error {
		_, err := peers.Output(exec.CommandContext(ctx, filepath.Join(bin, "psql"), append([]string{
			"-h", p.host, "-p", databasePort, "-U", database, "-d", base, "-q", "-v", "ON_ERROR_STOP=1",
		}, args...)...))
		return err
	}
	if err := peers.Until(ctx, "PostgreSQL", func() error {
		return sql("postgres", "-c", "CREATE DATABASE "+database)
	}); err != nil {
		return err
	}
	if err := sql(database, "-f", filepath.Join(p.source, "docs", "postgresql-schema.sql")); err != nil {
		return err
	}
	// The programs write these, and the schema lacks them.
	return sql(database, "-c", "ALTER TABLE health_events "+
		"ADD COLUMN IF NOT EXISTS quarantine_finish_timestamp timestamptz, "+
		"ADD COLUMN IF NOT EXISTS drain_finish_timestamp timestamptz")
}
