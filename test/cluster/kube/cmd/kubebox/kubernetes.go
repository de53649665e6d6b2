package main

import (
	"context"
	"os"
	_ "time/tzdata"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectlcmd "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubeletapp "k8s.io/kubernetes/cmd/kubelet/app"
)

func etcd() int                  { etcdmain.Main(os.Args); return 0 }
func kubeAPIServer() int         { return cli.Run(apiserver.NewAPIServerCommand()) }
func kubeControllerManager() int { return cli.Run(controllers.NewControllerManagerCommand()) }
func kubeScheduler() int         { return cli.Run(scheduler.NewSchedulerCommand()) }
func kubeProxy() int             { return cli.Run(proxy.NewProxyCommand()) }
func kubelet() int               { return cli.Run(kubeletapp.NewKubeletCommand(context.Background())) }

func kubectl() int {
	logs.GlogSetter(kubectlcmd.GetLogVerbosity(os.Args)) //nolint:errcheck // as upstream
	if err := cli.RunNoErrOutput(kubectlcmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err)
	}
	return 0
}
