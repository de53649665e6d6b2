package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// install is krew's, into a folder of its own, so that nothing else is in the way.
func (w *world) install(environment []string, manifest string, flags ...string) (string, error) {
	root, err := os.MkdirTemp(w.dir, "root")
	if err != nil {
		return "", err
	}
	environment = append([]string{"KREW_ROOT=" + root}, environment...)
	said, err := w.user(environment, "kubectl",
		append([]string{"krew", "install", "--manifest=" + manifest}, flags...)...)
	if err != nil {
		if _, there := os.Lstat(filepath.Join(root, "bin", program)); !errors.Is(there, fs.ErrNotExist) {
			return "", errors.New("it is on the PATH although krew refused it")
		}
	}
	return said, err
}

func wrongSum(w *world) (string, error) {
	manifest, err := w.manifest()
	if err != nil {
		return "", err
	}
	right, err := sum(archive())
	if err != nil {
		return "", err
	}
	file, err := w.write("wrong-sum/gpu-fault.yaml",
		strings.Replace(manifest, right, strings.Repeat("f", len(right)), 1))
	if err != nil {
		return "", err
	}
	for _, flags := range [][]string{nil, {"--archive=" + filepath.Join(w.repo, archive())}} {
		said, err := w.install(nil, file, flags...)
		if err := refused(said, err, "checksum does not match", right); err != nil {
			return "", err
		}
	}
	return "checksum does not match", nil
}

// noLicense: krew itself does not mind; the index's check does.
func noLicense(w *world) (string, error) {
	raw, err := os.ReadFile(archive())
	if err != nil {
		return "", err
	}
	bare, err := without(raw, "LICENSE")
	if err != nil {
		return "", err
	}
	manifest, err := w.manifest()
	if err != nil {
		return "", err
	}
	name := strings.Replace(filepath.Base(archive()), version, "v0.0.2-test", 1)
	file, err := w.write("no-license/"+name, string(bare))
	if err != nil {
		return "", err
	}
	w.page.publish("v0.0.2-test", filepath.Dir(file))
	now, err := sum(file)
	if err != nil {
		return "", err
	}
	manifest, err = only(manifest, runtime.GOOS, runtime.GOARCH, "v0.0.2-test", now)
	if err != nil {
		return "", err
	}
	file, err = w.write("no-license/gpu-fault.yaml", manifest)
	if err != nil {
		return "", err
	}
	said, err := w.user(nil, filepath.Join(w.repo, "bin/krew/validate-krew-manifest"), "-manifest", file)
	const why = "could not find license file"
	return why, refused(said, err, why)
}

// without returns the archive but for one file, compressed as fast as can be.
func without(archive []byte, name string) ([]byte, error) {
	files, err := untar(archive)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	zipped, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	out := tar.NewWriter(zipped)
	for _, f := range files {
		if f.name == name {
			continue
		}
		header := &tar.Header{Name: f.name, Size: int64(len(f.content)), Mode: int64(f.mode), Typeflag: tar.TypeReg}
		if err := out.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := out.Write(f.content); err != nil {
			return nil, err
		}
	}
	err = errors.Join(out.Close(), zipped.Close())
	return b.Bytes(), err
}

func unlistedPlatform(w *world) (string, error) {
	const why = "does not offer installation for this platform"
	manifest := filepath.Join(w.repo, dist, "krew-manifest.yaml")
	for _, p := range [][2]string{{"linux", "s390x"}, {"windows", "arm64"}} {
		said, err := w.install([]string{"KREW_OS=" + p[0], "KREW_ARCH=" + p[1]}, manifest)
		if err := refused(said, err, why); err != nil {
			return "", fmt.Errorf("%s/%s: %w", p[0], p[1], err)
		}
	}
	return why, nil
}

// twoVersions: an own build earlier on the PATH than krew's.
func twoVersions(w *world) (string, error) {
	if _, err := w.kubectl("krew", "install", "gpu-fault"); err != nil {
		return "", err
	}
	defer w.kubectl("krew", "uninstall", "gpu-fault")
	own, err := w.write("own/"+program, "#!/bin/sh\necho the other one\n")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(own, 0o755); err != nil {
		return "", err
	}
	path := []string{"PATH=" + filepath.Dir(own) + ":" + w.tools() + ":" + w.bin("")}
	said, err := w.user(path, "kubectl", "plugin", "list")
	why := fmt.Sprintf("%s is overshadowed by a similarly named plugin: %s", w.bin(program), own)
	if err := refused(said, err, why); err != nil {
		return "", err
	}
	said, err = w.user(path, "kubectl", "gpu-fault", "version")
	return "kubectl plugin list: overshadowed", errors.Join(err, has(said, "the other one"))
}

// krewRoot: krew makes the folder that is missing; where it cannot, and where its programs are not on the PATH, the
// user is told what to do.
func krewRoot(w *world) (string, error) {
	manifest, local := filepath.Join(w.repo, dist, "krew-manifest.yaml"), "--archive="+filepath.Join(w.repo, archive())
	missing := filepath.Join(w.dir, "missing", "krew")
	if _, err := w.user(
		[]string{"KREW_ROOT=" + missing}, "kubectl", "krew", "install", "--manifest="+manifest, local,
	); err != nil {
		return "", err
	}
	// /proc: root may write everywhere else.
	said, err := w.user([]string{"KREW_ROOT=/proc/krew"}, "kubectl", "krew", "install", "--manifest="+manifest, local)
	if err := refused(said, err, "failed to ensure create directory", "/proc/krew"); err != nil {
		return "", err
	}
	installed := filepath.Join(missing, "bin", program)
	said, err = w.user(nil, installed, "completion", "--install")
	return "", refused(said, err, "is not in a directory in PATH", "krew")
}
