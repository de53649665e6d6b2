package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"runtime"
	"sync"
	"time"
)

const node = `{"apiVersion":"v1","kind":"Node","metadata":{"name":%[1]q,
"annotations":{"kwok.x-k8s.io/node":"fake","node.alpha.kubernetes.io/ttl":"0"},
"labels":{"type":"kwok","kubernetes.io/hostname":%[1]q,"kubernetes.io/arch":%[3]q,"kubernetes.io/os":"linux",
"nvidia.com/gpu.present":"true","nvidia.com/gpu.count":"%[2]d","nvidia.com/gpu.product":"NVIDIA-H200","nvidia.com/gpu.family":"hopper","nvidia.com/gpu.memory":"143771"}},
"spec":{"taints":[{"key":"kwok.x-k8s.io/node","value":"fake","effect":"NoSchedule"}]},
"status":{"allocatable":{"cpu":"32","memory":"256Gi","pods":"110","nvidia.com/gpu":"%[2]d"},
"capacity":{"cpu":"32","memory":"256Gi","pods":"110","nvidia.com/gpu":"%[2]d"},
"nodeInfo":{"architecture":%[3]q,"operatingSystem":"linux","kubeletVersion":"fake","bootID":"","containerRuntimeVersion":"","kernelVersion":"","kubeProxyVersion":"","machineID":"","osImage":"","systemUUID":""},
"phase":"Running"}}`

// fakeNodes creates Node objects that kwok then keeps alive, several requests at a
// time.
//
//	clusterkit fakenodes -pki DIR -server https://10.99.0.2 -n 1000 [-gpus 8] [-delete]
func fakeNodes(args []string) error {
	flag := flag.NewFlagSet("fakenodes", flag.ExitOnError)
	pki := flag.String("pki", "", "folder with ca.crt, admin.crt and admin.key")
	server := flag.String("server", "", "API server")
	n := flag.Int("n", 1000, "nodes")
	gpus := flag.Int("gpus", 8, "nvidia.com/gpu on each")
	workers := flag.Int("workers", 16, "requests at a time")
	del := flag.Bool("delete", false, "delete them instead")
	_ = flag.Parse(args)

	client, err := newClient(*pki, "", "", "")
	if err != nil {
		return err
	}
	start := time.Now()
	ids := make(chan int)
	var wg sync.WaitGroup
	for range *workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range ids {
				name := fmt.Sprintf("fake-%05d", i)
				method, url := http.MethodPost, *server+"/api/v1/nodes"
				body := fmt.Appendf(nil, node, name, *gpus, runtime.GOARCH)
				if *del {
					method, url, body = http.MethodDelete, url+"/"+name, nil
				}
				req, err := http.NewRequest(method, url, bytes.NewReader(body))
				must(err)
				req.Header.Set("Content-Type", "application/json")
				resp, err := client.Do(req)
				must(err)
				out, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				if resp.StatusCode/100 != 2 {
					log.Fatalf("%s %s: %s %s", method, name, resp.Status, out)
				}
			}
		}()
	}
	for i := range *n {
		ids <- i
	}
	close(ids)
	wg.Wait()
	d := time.Since(start)
	fmt.Fprintf(os.Stderr, "%d fake nodes in %.1fs, %.0f a second\n", *n, d.Seconds(), float64(*n)/d.Seconds())
	return nil
}
