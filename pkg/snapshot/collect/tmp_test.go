package collect

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/test/scale/bigcluster"
)

func TestServe(t *testing.T) {
	b := bigcluster.New(t, 5000)
	os.WriteFile("/tmp/bigurl", []byte(b.URL), 0o600)
	for {
		if _, err := os.Stat("/tmp/bigurl"); err != nil {
			return
		}
		time.Sleep(time.Second)
	}
}

func TestTmp(t *testing.T) {
	url, _ := os.ReadFile("/tmp/bigurl")
	cluster, _ := Connect(&rest.Config{Host: string(url), QPS: 100, Burst: 200}, "gpu-fault")
	cluster.Ledger = nil
	show := func(what string) {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		raw, _ := os.ReadFile("/proc/self/status")
		hwm := ""
		for _, l := range splitLines(string(raw)) {
			if len(l) > 5 && l[:5] == "VmHWM" {
				hwm = l
			}
		}
		fmt.Println(what, "alloc", m.HeapAlloc>>20, "sys", m.Sys>>20, "total", m.TotalAlloc>>20, "gcs", m.NumGC, hwm)
	}
	show("start")
	s, err := Collect(context.Background(), cluster, Options{APIOnly: true}, func(x string) { show(x) })
	if err != nil {
		t.Fatal(err)
	}
	show("collected")
	runtime.GC()
	show("gc")
	f, _ := os.Create("/tmp/heap1.prof")
	pprof.WriteHeapProfile(f)
	f.Close()
	r := doctor.Examine(s, doctor.Options{})
	show("examined")
	runtime.GC()
	show("gc")
	f, _ = os.Create("/tmp/heap2.prof")
	pprof.WriteHeapProfile(f)
	f.Close()
	fmt.Println(len(r.Items), len(r.Unknown), len(s.Pods))
}

func splitLines(s string) (all []string) {
	start := 0
	for i := range s {
		if s[i] == '\n' {
			all = append(all, s[start:i])
			start = i + 1
		}
	}
	return
}
