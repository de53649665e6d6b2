package collect

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// Helm stores each revision of a release in a Secret of this type.
// https://helm.sh/docs/topics/advanced/#storage-backends
const (
	helmType     = "helm.sh/release.v1"
	helmSelector = "owner=helm,status in (deployed,failed,pending-install,pending-upgrade,pending-rollback)"
	// helmPage is small, because each Secret may be up to 1 MiB.
	helmPage = 20
	// helmMost limits the uncompressed size of a release, in bytes; a chart with its files is a few MiB.
	helmMost = 32 << 20
)

// helm reads the releases of GPU and monitoring software.
func (c *collector) helm(ctx context.Context) {
	latest := map[[2]string]snapshot.HelmRelease{}
	keep := func(secret *corev1.Secret) bool {
		release, err := decodeHelm(secret)
		if err != nil {
			if c.keeper.operands[secret.Namespace] {
				c.missing("helm/"+secret.Namespace+"/"+secret.Name, err.Error())
			}
			return false
		}
		key := [2]string{release.Namespace, release.Name}
		if matters(release) && release.Revision > latest[key].Revision {
			latest[key] = release
		}
		return false // do not keep the Secret
	}
	err := c.helmIn(ctx, metav1.NamespaceAll, keep)
	if apierrors.IsForbidden(err) {
		err = c.helmByNamespace(ctx, err, keep)
	}
	if err != nil && ctx.Err() == nil {
		c.missing("helm", reason(err))
	}
	for _, release := range latest {
		c.s.HelmReleases = append(c.s.HelmReleases, release)
	}
}

func (c *collector) helmIn(ctx context.Context, namespace string, keep func(*corev1.Secret) bool) error {
	options := metav1.ListOptions{LabelSelector: helmSelector, FieldSelector: "type=" + helmType, Limit: helmPage}
	_, err := all(ctx, options,
		paged(c.Client.CoreV1().Secrets(namespace).List, func(l *corev1.SecretList) []corev1.Secret { return l.Items }),
		keep)
	return err
}

// helmByNamespace is for users who may read Secrets only in the operator's namespace.
func (c *collector) helmByNamespace(ctx context.Context, forbidden error, keep func(*corev1.Secret) bool) error {
	allowed := false
	for namespace := range c.keeper.operands {
		switch err := c.helmIn(ctx, namespace, keep); {
		case err == nil:
			allowed = true
		case !apierrors.IsForbidden(err):
			return err
		}
	}
	if allowed {
		return nil
	}
	return forbidden
}

// matters reports whether a release is related to GPUs.
func matters(release snapshot.HelmRelease) bool {
	return slices.ContainsFunc([]string{
		"gpu", "nvidia", "node-feature-discovery", "nfd", "dcgm", "dra-driver", "prometheus", "nvsentinel",
		"network-operator", "mig", "kai-scheduler", "hami",
	}, func(part string) bool {
		return strings.Contains(release.Name, part) || strings.Contains(release.Chart, part)
	})
}

// helmRecord is the part of Helm's record that is needed.
type helmRecord struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Version   int    `json:"version"`
	Info      struct {
		Status string `json:"status"`
	} `json:"info"`
	Chart struct {
		Metadata struct {
			Name       string `json:"name"`
			Version    string `json:"version"`
			AppVersion string `json:"appVersion"`
		} `json:"metadata"`
	} `json:"chart"`
	Config map[string]any `json:"config"`
}

// decodeHelm decodes Helm's format: base64-encoded, gzipped JSON.
func decodeHelm(secret *corev1.Secret) (snapshot.HelmRelease, error) {
	raw := secret.Data["release"]
	if string(secret.Type) != helmType || len(raw) == 0 {
		return snapshot.HelmRelease{}, errors.New("not a Helm release")
	}
	data := make([]byte, base64.StdEncoding.DecodedLen(len(raw)))
	n, err := base64.StdEncoding.Decode(data, raw)
	if err != nil {
		return snapshot.HelmRelease{}, fmt.Errorf("decode release: %w", err)
	}
	data = data[:n]
	if bytes.HasPrefix(data, []byte{0x1f, 0x8b}) { // the oldest releases are not compressed
		if data, err = unzip(data); err != nil {
			return snapshot.HelmRelease{}, fmt.Errorf("decompress release: %w", err)
		}
	}
	var record helmRecord
	if err := utiljson.Unmarshal(data, &record); err != nil {
		return snapshot.HelmRelease{}, fmt.Errorf("parse release: %w", err)
	}
	return snapshot.HelmRelease{
		Namespace: cmp.Or(record.Namespace, secret.Namespace), Name: record.Name, Chart: record.Chart.Metadata.Name,
		ChartVersion: record.Chart.Metadata.Version,
		AppVersion:   record.Chart.Metadata.AppVersion, Revision: record.Version, Status: record.Info.Status,
		Values: record.Config,
	}, nil
}

func unzip(data []byte) ([]byte, error) {
	zipped, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	all, err := io.ReadAll(io.LimitReader(zipped, helmMost+1))
	if err == nil && len(all) > helmMost {
		return nil, fmt.Errorf("larger than %d MiB", helmMost>>20)
	}
	return all, err
}
