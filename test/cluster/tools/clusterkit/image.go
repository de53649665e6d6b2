package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"log"
	"os"
	"os/exec"
	"path"
	"runtime"
	"sort"
	"strings"
)

type list []string

func (l *list) String() string     { return strings.Join(*l, " ") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

type blob struct {
	MediaType string            `json:"mediaType"`
	Digest    string            `json:"digest"`
	Size      int               `json:"size"`
	Notes     map[string]string `json:"annotations,omitempty"`
	data      []byte
}

// image packs files into a one-layer OCI image archive that `ctr images import`
// takes. The same input gives the same bytes.
//
//	clusterkit image -o out.tar -name docker.io/library/busybox:1 [-name ...] -arch amd64 \
//	    -file /bin/get=FILE -busybox /bin/busybox -entrypoint /pause
func image(args []string) error {
	flag := flag.NewFlagSet("image", flag.ExitOnError)
	var names, files, links, entrypoint, cmd, env list
	out := flag.String("o", "image.tar", "archive to write")
	flag.Var(&names, "name", "image name, in full: docker.io/library/busybox:1; again for more names")
	arch := flag.String("arch", runtime.GOARCH, "architecture the image's config claims")
	busybox := flag.String("busybox", "", "busybox binary to put at /bin/busybox, with a link for each of its applets")
	flag.Var(&files, "file", "PATH_IN_IMAGE=FILE, again and again; the mode is 0755")
	flag.Var(&links, "link", "PATH_IN_IMAGE=TARGET, a symbolic link, again and again")
	flag.Var(&entrypoint, "entrypoint", "one word of the entry point, again and again")
	flag.Var(&cmd, "cmd", "one word of the default command, again and again")
	flag.Var(&env, "env", "NAME=VALUE, again and again")
	_ = flag.Parse(args)

	layer := map[string]*tar.Header{}
	body := map[string][]byte{}
	add := func(h *tar.Header, data []byte) {
		h.Name = strings.TrimPrefix(path.Clean(h.Name), "/")
		for d := path.Dir(h.Name); d != "."; d = path.Dir(d) {
			if layer[d] == nil {
				layer[d] = &tar.Header{Name: d, Typeflag: tar.TypeDir, Mode: 0o755}
			}
		}
		h.Size = int64(len(data))
		layer[h.Name], body[h.Name] = h, data
	}
	for _, d := range []string{"tmp", "etc", "root", "var/log", "usr/bin", "proc", "sys", "dev"} {
		mode := int64(0o755)
		if d == "tmp" {
			mode = 0o1777
		}
		add(&tar.Header{Name: d, Typeflag: tar.TypeDir, Mode: mode}, nil)
	}
	add(&tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644},
		[]byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"))
	add(&tar.Header{Name: "etc/group", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:\n"))
	for _, f := range files {
		dst, src, _ := strings.Cut(f, "=")
		data, err := os.ReadFile(src)
		must(err)
		add(&tar.Header{Name: dst, Typeflag: tar.TypeReg, Mode: 0o755}, data)
	}
	if *busybox != "" {
		data, err := os.ReadFile(*busybox)
		must(err)
		add(&tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755}, data)
		applets, err := exec.Command(*busybox, "--list").Output()
		must(err)
		for _, a := range strings.Fields(string(applets)) {
			if a != "busybox" {
				add(&tar.Header{Name: "bin/" + a, Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777}, nil)
			}
		}
	}
	for _, l := range links {
		at, to, _ := strings.Cut(l, "=")
		add(&tar.Header{Name: at, Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777}, nil)
	}

	paths := make([]string, 0, len(layer))
	for p := range layer {
		paths = append(paths, p)
	}
	sort.Strings(paths)
	var rootfs bytes.Buffer
	tw := tar.NewWriter(&rootfs)
	for _, n := range paths {
		h := layer[n]
		if h.Typeflag == tar.TypeDir {
			h.Name += "/"
		}
		must(tw.WriteHeader(h))
		_, err := tw.Write(body[n])
		must(err)
	}
	must(tw.Close())

	const oci = "application/vnd.oci.image."
	fs := newBlob(oci+"layer.v1.tar", rootfs.Bytes())
	path := "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	config := newBlob(oci+"config.v1+json", marshal(map[string]any{
		"architecture": *arch, "os": "linux",
		"config": map[string]any{"Entrypoint": entrypoint, "Cmd": cmd, "Env": append(list{path}, env...)},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fs.Digest}},
	}))
	top := newBlob(oci+"manifest.v1+json", marshal(map[string]any{
		"schemaVersion": 2, "mediaType": oci + "manifest.v1+json", "config": config, "layers": []blob{fs},
	}))
	blobs := []blob{fs, config, top}
	var named []blob
	for _, name := range names {
		top.Notes = map[string]string{"io.containerd.image.name": name}
		named = append(named, top)
	}

	f, err := os.Create(*out)
	must(err)
	tw = tar.NewWriter(f)
	write := func(name string, data []byte) {
		must(tw.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(data))}))
		_, err := tw.Write(data)
		must(err)
	}
	write("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	for _, b := range blobs {
		write("blobs/sha256/"+strings.TrimPrefix(b.Digest, "sha256:"), b.data)
	}
	write("index.json", marshal(map[string]any{"schemaVersion": 2, "manifests": named}))
	must(tw.Close())
	must(f.Close())
	return nil
}

func newBlob(mediaType string, data []byte) blob {
	sum := sha256.Sum256(data)
	return blob{MediaType: mediaType, Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: len(data), data: data}
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	must(err)
	return b
}

func must(err error) {
	if err != nil {
		log.Fatal("clusterkit: ", err)
	}
}
