package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// validates runs the check that krew's index runs for every pull request: rules, and an install for each platform.
func validates(w *world) (string, error) {
	manifest, err := w.manifest()
	if err != nil {
		return "", err
	}
	// The tool takes the plugin's name from the file's.
	file, err := w.write("validate/gpu-fault.yaml", manifest)
	if err != nil {
		return "", err
	}
	said, err := w.user(nil, filepath.Join(w.repo, "bin/krew/validate-krew-manifest"), "-manifest", file)
	if err != nil {
		return "", err
	}
	want := fmt.Sprintf("all %d spec.platforms installed fine", len(platforms))
	return want, has(said, want)
}

// installArchive is for who downloaded a release by hand, on a machine where krew has no index.
func installArchive(w *world) (string, error) {
	manifest, local := filepath.Join(w.repo, dist, "krew-manifest.yaml"), filepath.Join(w.repo, archive())
	if _, err := w.kubectl("krew", "install", "--manifest="+manifest, "--archive="+local); err != nil {
		return "", err
	}
	target, err := os.Readlink(w.bin(program))
	if err != nil {
		return "", err
	}
	if want := filepath.Join(w.root(), "store/gpu-fault", version, program); target != want {
		return "", fmt.Errorf("krew's link goes to %s, not to %s", target, want)
	}
	return "", nil
}

// answers runs the plugin as everybody does.
func answers(w *world) (string, error) {
	if err := w.version(version); err != nil {
		return "", err
	}
	said, err := w.kubectl("plugin", "list")
	if err != nil {
		return "", err
	}
	if err := has(said, w.bin(program)); err != nil {
		return "", err
	}
	said, err = w.kubectl("gpu-fault", "--help")
	return "", errors.Join(err, has(said, "kubectl gpu-fault"))
}

func (w *world) version(want string) error {
	said, err := w.kubectl("gpu-fault", "version", "--client")
	if err != nil {
		return err
	}
	return has(said, want, runtime.GOOS+"/"+runtime.GOARCH, "Node helpers: amd64, arm64")
}

// completes makes the link, which krew cannot, and asks kubectl as a shell does.
func completes(w *world) (string, error) {
	if said, err := w.kubectl("__complete", "gpu-fault", "xid", "exp"); err == nil &&
		strings.Contains(said, "explain\t") {
		return "", errors.New("kubectl completes without a link: this step proves nothing")
	}
	if _, err := w.kubectl("gpu-fault", "completion", "--install"); err != nil {
		return "", err
	}
	return "", w.completed()
}

func (w *world) completed() error {
	said, err := w.kubectl("__complete", "gpu-fault", "xid", "explain", "7")
	if err != nil {
		return err
	}
	return has(said, "79\t", ":4")
}

func completesUpgraded(w *world) (string, error) { return "", w.completed() }

// dangling: krew leaves the link when it removes what it points to. kubectl does not mind. krew takes a bin folder with
// files but without any installed plugin for one of before version 0.3, until the link is removed, as the caveats ask
// for.
func dangling(w *world) (string, error) {
	if _, err := w.publish(version); err != nil {
		return "", err
	}
	if _, err := w.kubectl("krew", "update"); err != nil { // uninstall wants an index
		return "", err
	}
	if _, err := w.kubectl("krew", "uninstall", "gpu-fault"); err != nil {
		return "", err
	}
	said, err := w.kubectl("__complete", "gpu-fault", "xid", "explain", "7")
	if err != nil {
		return "", err
	}
	if strings.Contains(said, "79\t") {
		return "", errors.New("it completes although nothing is installed")
	}
	said, err = w.kubectl("gpu-fault", "version")
	if err := refused(said, err, `unknown command "gpu-fault" for "kubectl"`); err != nil {
		return "", err
	}
	said, err = w.kubectl("krew", "update")
	const why = "krew home outdated"
	if err := refused(said, err, why); err != nil {
		return "", err
	}
	return "krew, until it is removed: " + why, os.Remove(w.bin(completionLink))
}

// publish commits the manifest to the index, for another version with the archive that was built for it.
func (w *world) publish(v string) (string, error) {
	manifest, err := w.manifest()
	if err != nil {
		return "", err
	}
	if v != version {
		old, err := sum(archive())
		if err != nil {
			return "", err
		}
		now, err := sum(filepath.Join(w.next, strings.Replace(filepath.Base(archive()), version, v, 1)))
		if err != nil {
			return "", err
		}
		manifest = strings.NewReplacer(version, v, old, now).Replace(manifest)
	}
	file, err := w.write("index/plugins/gpu-fault.yaml", manifest)
	if err != nil {
		return "", err
	}
	git := []string{
		"-C", w.index(), "-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false",
	}
	if _, err := os.Stat(filepath.Join(w.index(), ".git")); errors.Is(err, fs.ErrNotExist) {
		if _, err := w.user(nil, "git", "init", "--quiet", w.index()); err != nil {
			return "", err
		}
	}
	for _, args := range [][]string{{"add", "--all"}, {"commit", "--quiet", "--message", v}} {
		if _, err := w.user(nil, "git", append(git, args...)...); err != nil {
			return "", err
		}
	}
	return file, nil
}

func index(w *world) (string, error) {
	if _, err := w.kubectl("krew", "update"); err != nil {
		return "", err
	}
	said, err := w.kubectl("krew", "search", "gpu-fault")
	if err := errors.Join(err, has(said, "gpu-fault", shortDescription, "no")); err != nil {
		return "", err
	}
	said, err = w.kubectl("krew", "info", "gpu-fault")
	uri := "https://" + host + downloads + version + "/" + filepath.Base(archive())
	return "", errors.Join(err, has(said, "VERSION: "+version, uri, "completion --install"))
}

func installByName(w *world) (string, error) {
	said, err := w.kubectl("krew", "install", "gpu-fault")
	if err := errors.Join(err, has(said, "Installed plugin: gpu-fault", "completion --install")); err != nil {
		return "", err
	}
	said, err = w.kubectl("krew", "list")
	if err := errors.Join(err, has(said, "gpu-fault")); err != nil {
		return "", err
	}
	if err := w.version(version); err != nil {
		return "", err
	}
	_, err = w.kubectl("gpu-fault", "completion", "--install")
	return "", err
}

// upgrade builds the next version for this platform and publishes it.
func upgrade(w *world) (string, error) {
	w.next = filepath.Join(w.dir, "next")
	if err := w.release(w.repo, nextVersion, "-dist "+w.next); err != nil {
		return "", err
	}
	w.page.publish(nextVersion, w.next)
	if _, err := w.publish(nextVersion); err != nil {
		return "", err
	}
	said, err := w.kubectl("krew", "upgrade", "gpu-fault")
	if err := errors.Join(err, has(said, "Upgraded plugin: gpu-fault")); err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(w.root(), "store/gpu-fault", version)); err == nil {
		return "", errors.New("the old version is still in krew's store")
	}
	return version + " to " + nextVersion, w.version(nextVersion)
}

func uninstall(w *world) (string, error) {
	if err := os.Remove(w.bin(completionLink)); err != nil { // as the caveats say
		return "", err
	}
	if _, err := w.kubectl("krew", "uninstall", "gpu-fault"); err != nil {
		return "", err
	}
	var left []string
	err := filepath.WalkDir(w.root(), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path == filepath.Join(w.root(), "index") {
			return filepath.SkipDir
		}
		if err == nil && strings.Contains(strings.ReplaceAll(d.Name(), "_", "-"), "gpu-fault") {
			left = append(left, path)
		}
		return err
	})
	if len(left) > 0 {
		return "", fmt.Errorf("left: %v", left)
	}
	return "", err
}

func nobodyElse(w *world) (string, error) {
	served, strays := w.page.asked()
	if len(strays) > 0 {
		return "", fmt.Errorf("somebody asked for %v", strays)
	}
	if served == 0 {
		return "", errors.New("nobody fetched an archive either: the page was not used")
	}
	return fmt.Sprintf("%d downloads, all from the release's page", served), nil
}
