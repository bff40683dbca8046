// Command kubelet is the kubelet, the device plugin of the GPUs that it is to believe in, and a name server: they
// share most of what they are built from. It acts as the one that it is called by: by its file's name (a
// link), else by its first argument.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var programs = map[string]func() int{
	"kubelet":           func() int { return cli.Run(kubelet.NewKubeletCommand(context.Background())) },
	"gpu-device-plugin": servePlugin,
	"cluster-dns":       serveNames,
}

func main() {
	program, known := programs[filepath.Base(os.Args[0])]
	if !known && len(os.Args) > 1 {
		program, known = programs[os.Args[1]]
		os.Args = os.Args[1:]
	}
	if !known {
		fmt.Fprintln(os.Stderr, "usage: kubelet|gpu-device-plugin|cluster-dns [flags]")
		os.Exit(2)
	}
	os.Exit(program())
}
