package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// namespace is the namespace in which the floors and peers run.
const namespace = "bench"

type bench struct {
	plugin, base, kubectl, kubeconfig string
	node, gpu, image                  string
	rounds                            int
	config                            *rest.Config
	client                            kubernetes.Interface
}

// open connects to the cluster and creates the namespace. The returned function deletes the namespace.
func (b *bench) open(ctx context.Context) (leave func(), err error) {
	if b.config, err = clientcmd.BuildConfigFromFlags("", b.kubeconfig); err != nil {
		return nil, err
	}
	b.config.QPS = -1 // no client-side rate limit
	if b.client, err = kubernetes.NewForConfig(b.config); err != nil {
		return nil, err
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:   namespace,
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged", ledger.LabelLedger: "true"},
	}}
	// The namespace of a previous run may still be terminating.
	err = until(ctx, "the namespace "+namespace, time.Second, func() (bool, error) {
		_, err := b.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return false, err
		}
		return err == nil, nil
	})
	if err != nil {
		return nil, err
	}
	err = until(ctx, "the service account of "+namespace, 50*time.Millisecond, func() (bool, error) {
		_, err := b.client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, err
	})
	return func() {
		_ = b.client.CoreV1().Namespaces().Delete(context.Background(), namespace, metav1.DeleteOptions{})
	}, err
}

// state returns the directory of the test cluster.
func (b *bench) state() string { return filepath.Dir(b.kubeconfig) }

// script runs one of the scripts of the test cluster.
func (b *bench) script(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "test/cluster/"+name, args...)
	cmd.Env = append(os.Environ(), "STATE="+b.state())
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("test/cluster/%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// revert reverts all runs.
func (b *bench) revert(ctx context.Context, _ int) error {
	_, err := b.ours(ctx, "revert", "--all", "--yes")
	return err
}
