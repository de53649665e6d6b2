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

// Streams are the streams of a command. Out and Err must be different writers, because they are written to
// concurrently.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// NewExecer returns an Execer that connects through the API server. It uses WebSocket, or SPDY if the server or a proxy
// does not support WebSocket.
func NewExecer(config *rest.Config) Execer { return &remote{config} }

type remote struct{ config *rest.Config }

func (r *remote) Exec(ctx context.Context, pod *corev1.Pod, container string, command []string, streams Streams) error {
	executor, err := r.executor(pod, container, command)
	if err != nil {
		return err
	}
	// client-go logs an error if a stream is closed early. Discard its logs, because the caller reports relevant
	// errors.
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
