package expr

import (
	"encoding/base64"
	"path"
	"strings"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	corev1 "k8s.io/api/core/v1"
)

// This file determines what a new container would get from ConfigMaps and Secrets: files and environment variables.

// source is a ConfigMap or a Secret.
type source struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Data       map[string]string `json:"data"` // base64 in a Secret
	BinaryData map[string][]byte `json:"binaryData"`
}

const (
	configMap = "ConfigMap"
	secret    = "Secret"
)

// contents returns the data of a source by key.
func (s source) contents() map[string]string {
	all := map[string]string{}
	for name, value := range s.Data {
		if s.Kind == secret {
			decoded, err := base64.StdEncoding.DecodeString(value)
			if err != nil {
				continue // the API server does not return such a value
			}
			value = string(decoded)
		}
		all[name] = value
	}
	for name, value := range s.BinaryData {
		all[name] = string(value)
	}
	return all
}

// sources are ConfigMaps and Secrets of one namespace.
type sources []source

func (all sources) find(kind, name string) map[string]string {
	for _, s := range all {
		if s.Kind == kind && s.Metadata.Name == name {
			return s.contents()
		}
	}
	return nil
}

// file returns the content of the file at a path in a container of a pod with this spec, or "" if none of the
// ConfigMaps and Secrets provides the file. Like the kubelet, it follows items, projected volumes and subPath.
func file(args ...ref.Val) ref.Val {
	var spec corev1.PodSpec
	var container, at string
	var from sources
	for i, out := range []any{&spec, &container, &at, &from} {
		if err := into(args[i], out); err != nil {
			return types.NewErr("file: %v", err)
		}
	}
	at = path.Clean(at)
	var mount corev1.VolumeMount
	for _, c := range spec.Containers {
		for _, m := range c.VolumeMounts {
			if c.Name == container && below(at, m.MountPath) &&
				(mount.Name == "" || below(m.MountPath, mount.MountPath)) {
				mount = m
			}
		}
	}
	if mount.SubPathExpr != "" {
		return types.String("")
	}
	inVolume := path.Join(mount.SubPath, strings.TrimPrefix(at, path.Clean(mount.MountPath)))
	for _, v := range spec.Volumes {
		if v.Name == mount.Name {
			return types.String(from.mounted(v.VolumeSource)[strings.TrimPrefix(inVolume, "/")])
		}
	}
	return types.String("")
}

// below reports whether a path equals the directory, or is below it.
func below(name, dir string) bool {
	name, dir = path.Clean(name), path.Clean(dir)
	return name == dir || strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}

// mounted returns the files in a volume by their path.
func (all sources) mounted(volume corev1.VolumeSource) map[string]string {
	files := map[string]string{}
	add := func(kind, name string, items []corev1.KeyToPath) {
		data := all.find(kind, name)
		if len(items) == 0 {
			for key, text := range data {
				files[key] = text
			}
		}
		for _, item := range items {
			if text, is := data[item.Key]; is {
				files[path.Clean(item.Path)] = text
			}
		}
	}
	switch {
	case volume.ConfigMap != nil:
		add(configMap, volume.ConfigMap.Name, volume.ConfigMap.Items)
	case volume.Secret != nil:
		add(secret, volume.Secret.SecretName, volume.Secret.Items)
	case volume.Projected != nil:
		for _, projected := range volume.Projected.Sources {
			if projected.ConfigMap != nil {
				add(configMap, projected.ConfigMap.Name, projected.ConfigMap.Items)
			}
			if projected.Secret != nil {
				add(secret, projected.Secret.Name, projected.Secret.Items)
			}
		}
	}
	return files
}

// environmentOf returns the environment variables that a new container gets from its specification and from the
// ConfigMaps and Secrets. Values that are only known when the container runs are empty.
func environmentOf(container, from ref.Val) ref.Val {
	var c corev1.Container
	var all sources
	if err := into(container, &c); err != nil {
		return types.NewErr("environment: %v", err)
	}
	if err := into(from, &all); err != nil {
		return types.NewErr("environment: %v", err)
	}
	return types.DefaultTypeAdapter.NativeToValue(all.environment(c))
}

// argumentsOf returns the arguments of a new container, with $(NAME) references replaced by the values of its
// environment variables.
func argumentsOf(container, from ref.Val) ref.Val {
	var c corev1.Container
	var all sources
	if err := into(container, &c); err != nil {
		return types.NewErr("arguments: %v", err)
	}
	if err := into(from, &all); err != nil {
		return types.NewErr("arguments: %v", err)
	}
	arguments, variables := []string{}, all.environment(c)
	for _, argument := range c.Args {
		arguments = append(arguments, Expand(argument, variables))
	}
	return types.DefaultTypeAdapter.NativeToValue(arguments)
}

// environment returns the environment variables that a new container gets.
func (all sources) environment(c corev1.Container) map[string]string {
	variables := map[string]string{}
	for _, f := range c.EnvFrom {
		var data map[string]string
		if f.ConfigMapRef != nil {
			data = all.find(configMap, f.ConfigMapRef.Name)
		} else if f.SecretRef != nil {
			data = all.find(secret, f.SecretRef.Name)
		}
		for name, value := range data {
			variables[f.Prefix+name] = value
		}
	}
	for _, v := range c.Env {
		value, is := Expand(v.Value, variables), true
		if given := v.ValueFrom; given != nil {
			switch {
			case given.ConfigMapKeyRef != nil:
				value, is = all.find(configMap, given.ConfigMapKeyRef.Name)[given.ConfigMapKeyRef.Key]
			case given.SecretKeyRef != nil:
				value, is = all.find(secret, given.SecretKeyRef.Name)[given.SecretKeyRef.Key]
			}
		}
		if is {
			variables[v.Name] = value
		}
	}
	return variables
}

// Expand replaces $(NAME) references in an argument or in the value of an environment variable, as the kubelet does. $$
// is a dollar sign. References to variables other than the given ones are kept.
func Expand(value string, variables map[string]string) string {
	var out strings.Builder
	for {
		before, after, found := strings.Cut(value, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		name, rest, closed := strings.Cut(after, ")")
		known, is := variables[strings.TrimPrefix(name, "(")]
		switch {
		case strings.HasPrefix(after, "$"):
			out.WriteByte('$')
			value = after[1:]
		case strings.HasPrefix(after, "(") && closed && is:
			out.WriteString(known)
			value = rest
		default:
			out.WriteByte('$')
			value = after
		}
	}
}

// References returns the names that a value refers to as $(NAME).
func References(value string) []string {
	var names []string
	for {
		_, after, found := strings.Cut(value, "$")
		if !found {
			return names
		}
		if strings.HasPrefix(after, "$") {
			value = after[1:]
			continue
		}
		if name, _, closed := strings.Cut(after, ")"); closed && strings.HasPrefix(name, "(") {
			names = append(names, name[1:])
		}
		value = after
	}
}
