package debugpod

import (
	"context"
	"io"
	"net/http"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
)

// Streams are a command's. Out and Err must be two writers: they are written at the same time.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// NewExecer returns an Execer that goes through the API server: by WebSocket, or by SPDY where a server or a proxy on
// the way does not know that.
func NewExecer(config *rest.Config) Execer { return &remote{config} }

type remote struct{ config *rest.Config }

func (r *remote) Exec(ctx context.Context, pod *corev1.Pod, container string, command []string, streams Streams) error {
	executor, err := r.executor(pod, container, command)
	if err != nil {
		return err
	}
	// When a stream is left early, client-go logs that copying failed; we say what matters ourselves.
	ctx = klog.NewContext(ctx, logr.Discard())
	return executor.StreamWithContext(ctx,
		remotecommand.StreamOptions{Stdin: streams.In, Stdout: streams.Out, Stderr: streams.Err})
}

func (r *remote) executor(pod *corev1.Pod, container string, command []string) (remotecommand.Executor, error) {
	config := rest.CopyConfig(r.config)
	config.GroupVersion = &corev1.SchemeGroupVersion
	config.APIPath = "/api"
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	url := client.Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: container, Command: command, Stdin: true, Stdout: true, Stderr: true,
		}, scheme.ParameterCodec).
		URL()
	websocket, err := remotecommand.NewWebSocketExecutor(r.config, http.MethodGet, url.String())
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(r.config, http.MethodPost, url)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(websocket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
}
